"""Describes a tool call and its effect in words for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.tools.effects import Effect

_EFFECTS: Mapping[str, str] = {
    Effect.READ: "reads public information",
    Effect.PRIVATE_READ: "reads data that is kept here",
    Effect.WRITE_WORKSPACE: "changes files",
    Effect.PERSIST: "changes lasting data, such as memory, schedule or skills",
    Effect.SEND: "writes to people",
    Effect.NETWORK_GET: "fetches from the network",
    Effect.NETWORK_SEND: "sends data to a server",
    Effect.EXECUTE: "runs a program",
}
_YES_OR_NO = {True: "yes", False: "no", None: "nothing"}


def effect_in_words(effect: str) -> str:
    """An effect in words; an unknown effect of another version keeps its name."""
    return _EFFECTS.get(effect, effect)


def call_in_words(tool: str, arguments: Mapping[str, Any]) -> str:
    """The tool and its arguments, without program syntax."""
    return f"{tool}: {_named(arguments)}" if arguments else tool


def _named(arguments: Mapping[str, Any]) -> str:
    given = {name: value for name, value in arguments.items() if value != ""}
    return ", ".join(f"{str(name).replace('_', ' ')} {_said(value)}" for name, value in given.items())


def _said(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _YES_OR_NO[value]
    if isinstance(value, Mapping):
        return f"({_named(value)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(map(_said, value))})"
    return str(value)
