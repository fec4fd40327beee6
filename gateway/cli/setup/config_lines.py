"""
Turns the answers of `squidbot init` into settings, and settings into lines of YAML. Pure. Settings are nested
mappings in the order of the file (`Tree`); a `SecretLine` stands in a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from channels.setup import SecretLine
from gateway.cli.setup.model_probe import ModelOffer
from gateway.plugins import channel_kinds
from gateway.routing.access import normalise

HEAD = """\
# squidbot's settings, by `squidbot init`. Change what you like; `squidbot check` tests it.
# ${secret:NAME} is the file secrets/NAME beside this one, ${NAME} an environment variable.
"""
Tree = dict[str, Any]

_NOTES: dict[tuple[str, ...], str] = {
    ("owner",): "Who you are. squidbot reads and writes your memory only where nobody else can read along.",
    ("owner", "aliases"): "your addresses on all channels",
    ("llm",): "The models. A pool is a list: if a model fails, squidbot asks the next one.",
    ("llm", "default_pool"): "the pool that answers",
    ("language",): "of what squidbot itself says to people; en or de",
    ("timezone",): "of all times that are said to you and by you",
    ("llm", "providers"): "who runs the models, and the key for it; api_base for a server of your own",
    ("llm", "models"): "the models, under names that you choose",
    ("gateway", "http"): "for your browser: squidbot console gives you a link; docs/console.md",
    ("channels",): "Where people talk to squidbot. allow_from names who else may; you always may.",
    **{
        ("channels", kind, name): note
        for kind, plugin in channel_kinds().items()
        for name, note in plugin.notes.items()
    },
}


@dataclass(frozen=True, slots=True)
class Answers:
    """
    All answers. ``channels`` are the settings by kind; a kind in ``off`` is switched off, others stay as they
    are. ``console`` is the address of a new console.
    """

    owner: tuple[str, ...]
    model: ModelOffer | None = None
    channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    timezone: str = ""
    language: str = ""
    console: str = ""


def settings_of(answers: Answers, now: Tree) -> Tree:
    """
    The settings that say what was answered.

    Args:
        answers: What was asked.
        now: The configuration as it reads; empty if there is none.
    """
    channels: Tree = {kind: {"enabled": False} for kind in sorted(answers.off)}
    channels |= {kind: dict(section) for kind, section in answers.channels.items()}
    for kind, section in channels.items():
        if there := _first((now.get("channels") or {}).get(kind)):
            section.pop("allow_from", None)
            fields = channel_kinds()[kind].config.model_fields
            for name in [name for name in section if name not in there and name in fields]:
                if section[name] == fields[name].default:
                    del section[name]
    whole = {
        "owner": _owner(answers.owner, now),
        "timezone": answers.timezone,
        "language": answers.language,
        "llm": _model(answers.model, now.get("llm") or {}) if answers.model else {},
        "channels": channels,
        "gateway": {"http": {"listen": answers.console, "console": True}} if answers.console else {},
    }
    return {name: part for name, part in whole.items() if part}


def missing_in(now: Any, wanted: Tree) -> Tree:
    """Return the settings that a configuration lacks or has with other values."""
    found: Tree = {}
    now = _first(now)
    for name, value in wanted.items():
        there = now.get(name) if isinstance(now, dict) else None
        if not isinstance(value, dict):
            if there != (value.text if isinstance(value, SecretLine) else value):
                found[name] = value
        elif inner := missing_in(there, value):
            found[name] = inner
    return found


def secrets_of(tree: Tree) -> Iterator[SecretLine]:
    """All secrets in the settings."""
    for value in tree.values():
        if isinstance(value, SecretLine):
            yield value
        elif isinstance(value, dict):
            yield from secrets_of(value)


def lines_of(tree: Tree, above: tuple[str, ...] = ()) -> list[str]:
    """The settings in YAML, with a note at each key that has one."""
    lines: list[str] = []
    space = "  " * len(above)
    for name, value in tree.items():
        nested, note = isinstance(value, dict), _NOTES.get((*above, name), "")
        line = f"{space}{render_value(name)}:{'' if nested else f' {render_value(value)}'}"
        if nested and not above and lines:
            lines.append("")
        if note and (nested or len(line) + len(note) + 4 > 110):
            lines += [f"{space}# {note}", line]
        else:
            lines.append(f"{line}  # {note}" if note else line)
        if nested:
            lines += lines_of(value, (*above, name))
    return lines


def render_value(value: Any) -> str:
    """A value on one line of YAML; no text in it is taken for a reference."""
    if isinstance(value, list):
        return f"[{', '.join(map(render_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{render_value(name)}: {render_value(one)}' for name, one in value.items())}}}"
    if not isinstance(value, str | SecretLine):
        return json.dumps(value)
    text = f"${{secret:{value.name}}}" if isinstance(value, SecretLine) else value.replace("${", "$${")
    if text.isascii() and text.isidentifier() and yaml.safe_load(text) == text:
        return text
    quoted = yaml.safe_dump(text, default_style='"', allow_unicode=text.isprintable(), width=float("inf"))
    return quoted.strip()


def _first(section: Any) -> Any:
    """A section, or the first account of several."""
    return section[0] if isinstance(section, list) and section else section


def _owner(given: tuple[str, ...], now: Tree) -> Tree:
    """The owner's addresses, with those that are there."""
    there = (now.get("owner") or {}).get("aliases") or []
    known = {normalise(str(one.get("address") if isinstance(one, dict) else one)) for one in there}
    new = [one for one in given if normalise(one) not in known]
    return {"aliases": [*there, *new]} if new else {}


def _model(offer: ModelOffer, llm: Tree) -> Tree:
    name, pool = "assistant", llm.get("default_pool") or "main"
    made: Tree = {"default_pool": pool}
    if offer.provider:
        key = "none" if offer.is_own_server and not offer.api_key else offer.api_key
        provider: Tree = {"api_base": offer.api_base} if offer.api_base else {}
        provider["api_key"] = key if offer.is_own_server else SecretLine(offer.secret_name, key)
        made["providers"] = {offer.provider: provider}
    model = {"provider": offer.provider} if offer.provider else {}
    made["models"] = {name: {**model, "model": offer.model}}
    others = [one for one in (llm.get("pools") or {}).get(pool, ()) if one != name]
    made["pools"] = {pool: [name, *others]}
    return made
