"""
What only the whole configuration can show: references to names that do not exist, and loose permissions. The
references are checked even if other keys are wrong, so that all complaints come at once: what is sound enough
to be read is read again, part by part.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec, check_references
from agent_core.media.media_config import check_image, check_voice
from channels.heartbeat.config import split_target
from gateway.plugins import channel_kinds, tool_families
from gateway.routing.access import kind_of, kinds_of, normalise
from gateway.settings.accounts import ChannelSettings
from gateway.settings.people_settings import entries_of, people_problems
from gateway.settings.source import KeyPath, Problem, Source, show_path

TOOLS = (
    "calendar",
    "contacts",
    "delete_file",
    "edit_file",
    "list_files",
    "memory_write",
    "move_file",
    "read_attachment",
    "read_file",
    "read_skill",
    "schedule",
    "search_files",
    "search_history",
    "send_file",
    "shell",
    "tasks",
    "web_fetch",
    "web_search",
    "write_file",
)
"""The tools that there can be."""
_HANDED_OVER = (Path("/run/credentials"), Path("/run/secrets"))

_Spec = TypeVar("_Spec", bound=BaseModel)
_PART = re.compile(r"\[(\d+)\]$")


def check_whole(source: Source) -> list[Problem]:
    """Check the references between the parts."""
    problems = _aliases(source.data)
    problems += _target(source.data)
    problems += _tools(source.data)
    problems += people_problems(source.data, _every_owner_address(source.data.get("owner")))
    spec = _sound_part(source.data.get("llm"))
    if spec is not None:
        found = check_references(spec, _pool_references(source.data))
        problems += [Problem(_path_of(text, spec), message) for text, message in found]
        said = check_voice(source.data.get("voice"), spec.providers)
        said += check_image(source.data.get("tools"), spec.providers)
        problems += [Problem(path, message) for path, message in said]
    return problems


def permission_warnings(source: Source, *, handed_over: Sequence[Path] = _HANDED_OVER) -> list[str]:
    """Warn about files with secrets that other users can read, except credentials that systemd hands over."""
    suspects = ([source.path] if source.literal_secrets else []) + source.files
    found = []
    for path in dict.fromkeys(suspects):
        try:
            loose = stat.S_IMODE(path.stat().st_mode) & 0o077
        except OSError:
            continue
        # Service managers guard the folder; the mode of a file there (0440 with an ACL) says nothing.
        if loose and not any(path.is_relative_to(folder) for folder in handed_over):
            found.append(
                f"{path} contains a secret, and other users of this machine can read it; run: "
                f"chmod 600 {path}"
            )
    return found


def _tools(data: Mapping[str, Any]) -> list[Problem]:
    """Only what there is can be approved: a slip of the pen would leave a tool unguarded."""
    tools = data.get("tools")
    wanted = tools.get("require_approval") if isinstance(tools, dict) else None
    mcp = data.get("mcp")
    servers = mcp.get("servers") if isinstance(mcp, dict) else None
    others = tuple(f"{name}__" for name in servers) if isinstance(servers, dict) else ()
    others += tuple(tool_families())
    lists: list[tuple[KeyPath, Any]] = [(("tools", "require_approval"), wanted)]
    lists += [((*path, "tools"), entry.get("tools")) for path, entry in _people_and_rooms(data)]
    return [
        Problem((*path, number), f"there is no tool {name!r}; the tools are: {', '.join(TOOLS)}")
        for path, names in lists
        for number, name in enumerate(names if isinstance(names, list) else ())
        if isinstance(name, str)
        and not (name in TOOLS or (name.endswith("*") and path[-1] == "tools"))
        and not (others and name.startswith(others))
    ]


def _people_and_rooms(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """The places where single people and rooms have settings of their own."""
    for name, entry in entries_of(data.get("people")):
        yield ("people", name), entry
    channels = data.get("channels")
    for kind in channel_kinds():
        given = channels.get(kind) if isinstance(channels, dict) else None
        for number, account in enumerate(given if isinstance(given, list) else [given]):
            place = ("channels", kind, number) if isinstance(given, list) else ("channels", kind)
            rooms = account.get("rooms") if isinstance(account, dict) else None
            yield from (((*place, "rooms", name), entry) for name, entry in entries_of(rooms))


def _target(data: Mapping[str, Any]) -> list[Problem]:
    """Report a target of the heartbeat that is not the owner on a configured channel."""
    agents = data.get("agents")
    heartbeat = agents.get("heartbeat") if isinstance(agents, dict) else None
    target = heartbeat.get("target") if isinstance(heartbeat, dict) else None
    if not isinstance(target, str) or not target:
        return []
    try:
        name, place = split_target(target)
    except ValueError:
        return []  # said by its type already
    channels = data.get("channels")
    said = _target_problem(name, place, _accounts(channels), data.get("owner"), apart=_apart(channels))
    return [Problem(("agents", "heartbeat", "target"), said)] if said else []


def _apart(channels: Any) -> frozenset[str]:
    """The accounts on which an address of the kind is not the owner's; none as long as others are unsound."""
    try:
        return ChannelSettings.model_validate(channels or {}).separate_accounts()
    except ValidationError:
        return frozenset()


def _target_problem(
    name: str, place: str, kinds: Mapping[str, str], owner: Any, *, apart: Collection[str] = ()
) -> str | None:
    kind = kinds.get(name)
    if kind is None:
        there = f"; the channels are: {', '.join(kinds)}" if kinds else ""
        return f"no channel {name!r} is enabled under channels{there}"
    rules = channel_kinds()[kind].addresses
    if rules.parse(place) is None and not rules.is_room(place):
        return f"{name!r} is an account of {kind} and has no place {place!r}; write it like {rules.example}"
    known = _owner_addresses(owner, (name,) if name in apart else (kind, name))
    if not known and name in apart:
        return (
            f"you are not the owner on {name!r}, because this account identifies people by another "
            "homeserver, or by weaker checks, than the first one; if you trust it, add "
            f"{{channel: {name}, address: …}} to owner.aliases"
        )
    if rules.is_room(place):
        lonely = f"owner.aliases has no address on {name}, so this room cannot be the owner's alone"
        return None if known else lonely
    if normalise(place) not in known:
        return f"{place!r} is not one of owner.aliases; alerts go only to the owner"
    return None


def _aliases(data: Mapping[str, Any]) -> list[Problem]:
    owner = data.get("owner")
    aliases = owner.get("aliases") if isinstance(owner, dict) else None
    kinds = {**{kind: kind for kind in channel_kinds()}, **_accounts(data.get("channels"), off_too=True)}
    found = []
    for number, alias in enumerate(aliases if isinstance(aliases, list) else ()):
        channel = alias.get("channel") if isinstance(alias, dict) else None
        address = alias.get("address") if isinstance(alias, dict) else None
        if not isinstance(channel, str) or not isinstance(address, str) or channel in channel_kinds():
            continue
        if channel not in kinds:
            told = f"there is no channel {channel!r}; the channels are: {', '.join(kinds)}"
            found.append(Problem(("owner", "aliases", number), told))
        elif kinds[channel] not in kinds_of(address):
            told = f"{address!r} is no address on the channel {channel}"
            found.append(Problem(("owner", "aliases", number), told))
    return found


def _accounts(channels: Any, *, off_too: bool = False) -> dict[str, str]:
    """The kinds of the accounts, or of those that are switched on, by name, of what is not checked yet."""
    found: dict[str, str] = {}
    for kind in channel_kinds():
        given = channels.get(kind) if isinstance(channels, dict) else None
        for number, account in enumerate(given if isinstance(given, list) else [given]):
            if isinstance(account, dict) and (off_too or account.get("enabled") is not False):
                found[str(account.get("name") or (kind if number == 0 else ""))] = kind
    found.pop("", None)
    return found


def _every_owner_address(owner: Any) -> set[str]:
    aliases = owner.get("aliases") if isinstance(owner, dict) else None
    given = aliases if isinstance(aliases, list) else []
    return {normalise(str(one.get("address") if isinstance(one, dict) else one)) for one in given}


def _owner_addresses(owner: Any, channels: Collection[str]) -> set[str]:
    """The owner's addresses on these channels, as far as they are sound."""
    aliases = owner.get("aliases") if isinstance(owner, dict) else None
    found = set()
    for alias in aliases if isinstance(aliases, list) else ():
        address = str(alias.get("address") if isinstance(alias, dict) else alias)
        named = alias.get("channel") if isinstance(alias, dict) else None
        if (named or kind_of(address)) in channels:
            found.add(normalise(address))
    return found


def _pool_references(data: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, Any] = {}
    match data:
        case {"agents": {"consolidation_pool": pool}}:
            found["agents.consolidation_pool"] = pool
    match data:
        case {"agents": {"heartbeat": {"pool": pool}}}:
            found["agents.heartbeat.pool"] = pool
    match data:
        case {"tools": {"jobs": {"pool": pool}}}:
            found["tools.jobs.pool"] = pool
    found |= {show_path((*path, "pool")): entry.get("pool") for path, entry in _people_and_rooms(data)}
    return {path: pool for path, pool in found.items() if isinstance(pool, str)}


def _sound_part(llm: Any) -> LLMSpec | None:
    """``llm:`` without what is wrong in it; models and providers that are wrong still exist by name."""
    if llm is None:
        return LLMSpec()
    if not isinstance(llm, dict):
        return None
    pools = llm.get("pools")
    sound_pools = {
        str(name): tuple(members)
        for name, members in (pools.items() if isinstance(pools, dict) else ())
        if isinstance(members, list) and all(isinstance(member, str) for member in members)
    }
    unsound = isinstance(pools, dict) and len(sound_pools) != len(pools)
    default = llm.get("default_pool", LLMSpec().default_pool)
    spec = LLMSpec(
        default_pool=default if isinstance(default, str) else "",
        providers=_by_name(llm.get("providers"), ProviderSpec, {}),
        models=_by_name(llm.get("models"), ModelSpec, {"model": "unsound"}),
        pools=sound_pools,
    )
    # With a pool missing only because it is wrong itself, every mention of it would be a false complaint.
    return None if unsound or not isinstance(default, str) else spec


def _by_name(part: Any, kind: type[_Spec], needed: dict[str, Any]) -> dict[str, _Spec]:
    found = {}
    for name, value in part.items() if isinstance(part, dict) else ():
        sound = dict(value) if isinstance(value, dict) else {}
        try:
            kind.model_validate(sound)
        except ValidationError as error:
            wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
            sound = needed | {key: inner for key, inner in sound.items() if key not in wrong}
        found[str(name)] = kind.model_validate(sound)
    return found


def _path_of(text: str, spec: LLMSpec) -> KeyPath:
    """The key path behind the text of one; names may contain dots, so the known ones are tried first."""
    for group, names in (("providers", spec.providers), ("models", spec.models), ("pools", spec.pools)):
        for name in sorted(names, key=len, reverse=True):
            start = f"llm.{group}.{name}"
            if text == start or text.startswith((f"{start}.", f"{start}[")):
                return ("llm", group, name, *_rest(text[len(start) :]))
    return tuple(text.split("."))


def _rest(text: str) -> KeyPath:
    number = _PART.search(text)
    if number:
        return (int(number.group(1)),)
    return tuple(text.removeprefix(".").split(".")) if text else ()
