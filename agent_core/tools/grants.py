"""
Grants: an approval in advance, for a limited time, of calls like one that was asked about. Pure. A grant is
never wider than its question: this very command, writes in this folder, pages of this host, this tool of a
server. Only equality is compared and no command is parsed, so ``git status; rm`` is not ``git status``. A
grant never overrides a denial and removes no origins.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from agent_core.language import _
from agent_core.provenance import KEPT, Origins, Trust
from agent_core.tools.effects import Effect
from agent_core.tools.policy import Proposal

DEFAULT = timedelta(hours=1)
MAX_DURATION = timedelta(days=1)
_STRICT = frozenset({Effect.EXECUTE, Effect.NETWORK_SEND, Effect.SEND, Effect.PERSIST})
"""What may not follow words of strangers, unless the question has shown the very call and named them."""


class GrantKind(StrEnum):
    """The extent of a grant."""

    CALL = "call"
    """Exactly this call, such as this command line."""
    FOLDER = "folder"
    """Writing, moving and deleting files below this folder."""
    HOST = "host"
    """Fetching addresses of this host."""
    TOOL = "tool"
    """This tool of an MCP server, with any arguments."""


class Scope(NamedTuple):
    """A possible extent of a grant: ``what`` is the exact call, folder or host."""

    kind: GrantKind
    tool: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """
    An approval in advance.

    Args:
        conversation: Where it is valid; "": wherever only ``people`` write.
        people: The addresses whose requests it covers.
        turn: The only turn it covers; "": each.
        origins: The sources its question named.
        seen_at: The latest time at which it was checked.
    """

    id: str
    scope: Scope
    conversation: str
    people: tuple[str, ...]
    by: str
    at: datetime
    until: datetime
    turn: str = ""
    origins: Origins = ()
    seen_at: datetime | None = None


def scope_of(proposal: Proposal) -> Scope | None:
    """The scope of a grant for calls like this one; None: none would spare the same question again."""
    scope = _widest(proposal)
    return None if scope is None or _is_foreign_idea(scope, proposal.origins, proposal) else scope


def _widest(proposal: Proposal) -> Scope | None:
    call, targets = proposal.call, list(proposal.targets)
    if "__" in call.name:
        return Scope(GrantKind.TOOL, call.name)
    match proposal.effect:
        case Effect.EXECUTE | Effect.NETWORK_SEND:
            return Scope(GrantKind.CALL, call.name, _exact(proposal))
        case Effect.WRITE_WORKSPACE:
            folders = {_folder(target) for target in targets}
            folder = folders.pop() if len(folders) == 1 else None
            return Scope(GrantKind.FOLDER, "", "/".join(folder)) if folder else None
        case Effect.NETWORK_GET:
            hosts = {_host(target) for target in targets}
            host = hosts.pop() if len(hosts) == 1 else None
            return Scope(GrantKind.HOST, "", host) if host else None
    return None


def covers(
    grant: Grant, proposal: Proposal, *, conversation: str, people: Collection[str], turn: str, now: datetime
) -> bool:
    """Return True if a grant makes a question about this call unnecessary."""
    if not in_force(grant, now) or (grant.turn and grant.turn != turn):
        return False
    if grant.conversation and grant.conversation != conversation:
        return False
    if not people or not set(people) <= set(grant.people):
        return False
    return _is_within(grant.scope, proposal) and not _is_foreign_idea(grant.scope, grant.origins, proposal)


def in_force(grant: Grant, now: datetime) -> bool:
    """Return True while a grant is valid; it ends if the clock is set back."""
    return grant.at <= now < grant.until and (grant.seen_at is None or grant.seen_at <= now)


def describe_scope(scope: Scope) -> str:
    """A scope in words, without the exact call, which is shown beside it."""
    match scope.kind:
        case GrantKind.CALL:
            return _("exactly this call of `{tool}`", tool=scope.tool)
        case GrantKind.FOLDER:
            return _("writing, moving and deleting files in `{folder}/`", folder=_plain(scope.what))
        case GrantKind.HOST:
            return _("fetching from `{host}`", host=_plain(scope.what))
    return _("`{tool}` with any arguments", tool=_plain(scope.tool))


def _is_within(scope: Scope, proposal: Proposal) -> bool:
    call, targets = proposal.call, list(proposal.targets)
    match scope.kind:
        case GrantKind.CALL:
            return call.name == scope.tool and _exact(proposal) == scope.what
        case GrantKind.TOOL:
            return call.name == scope.tool
        case GrantKind.FOLDER:
            wanted = scope.what.split("/")
            found = [_folder(target) for target in targets]
            return (
                proposal.effect is Effect.WRITE_WORKSPACE
                and bool(found)
                and all(folder is not None and list(folder[: len(wanted)]) == wanted for folder in found)
            )
        case GrantKind.HOST:
            return (
                proposal.effect is Effect.NETWORK_GET
                and bool(targets)
                and all(_host(target) == scope.what for target in targets)
            )


def _is_foreign_idea(scope: Scope, shown: Origins, proposal: Proposal) -> bool:
    """
    Return True if the prompt holds untrusted sources that a grant with ``shown`` ones does not cover.

    A call that runs or sends something, or a tool of a server, passes only as the exact call that was shown,
    and only with sources its question named. Files are written and pages fetched only after named sources
    too; a page of the granted host is none. A full list of sources may be incomplete and does not pass.
    """
    unknown = {(each.kind, each.where) for each in proposal.origins if each.trust > Trust.KNOWN}
    if scope.kind is GrantKind.HOST:
        unknown = {each for each in unknown if each[0] != "web" or _host(each[1]) != scope.what}
    if not unknown:
        return False
    named = {(each.kind, each.where) for each in shown}
    if not unknown <= named or len(proposal.origins) >= KEPT:
        return True
    is_strict = proposal.effect in _STRICT or scope.kind is GrantKind.TOOL
    return is_strict and scope.kind is not GrantKind.CALL


def _exact(proposal: Proposal) -> str:
    """A call, letter for letter: the command, if its tool says what it runs, else all of its arguments."""
    runs = proposal.effect is Effect.EXECUTE and list(proposal.targets)
    of = runs or proposal.call.arguments
    return json.dumps(of, ensure_ascii=False, sort_keys=True, default=str)


def _folder(path: str) -> Sequence[str] | None:
    """The parts of the folder of a file; None of one that is in none, or has parts that lead elsewhere."""
    parts = path.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        return None
    return tuple(parts[:-1])


def _host(address: str) -> str | None:
    """Scheme, host and port of an address; None if one of them is not plainly there."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable() and char != "`")
