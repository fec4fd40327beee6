"""One sentence for each way in which a command can be mistyped, in the place of the parser's own words."""

from __future__ import annotations

from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from gateway.cli.manual import EXAMPLES

_SHOWN = 60
_KINDS: dict[object, str] = {int: "a whole number", float: "a number", bool: "yes or no"}


def usage_sentence(error: CycloptsError) -> str:
    """Say what was mistyped, and how the command is written."""
    words = list(error.command_chain or ())
    if isinstance(error, UnknownCommandError):
        return _unknown_command(error, words)
    said = _mistake(error, " ".join(["squidbot", *words]))
    example = EXAMPLES.get(" ".join(words), "")
    told = f" Such as: {example}" if example else f" `{' '.join(['squidbot', *words])} --help` shows more."
    return f"{said}{'' if said.endswith('?') else '.'}{told}"


def _mistake(error: CycloptsError, command: str) -> str:
    match error:
        case UnknownOptionError():
            return _unknown_option(error, command)
        case UnusedCliTokensError():
            said = f'"{_short((error.unused_tokens or [""])[0])}" is too much for `{command}`'
            return f"{said}; a text of several words needs quotation marks"
        case MissingArgumentError() if error.argument is not None:
            named = error.keyword or error.argument.name
            return f"{named} needs a value" if named.startswith("-") else f"`{command}` needs {named.upper()}"
        case CoercionError() if error.argument is not None and error.token is not None and error.msg is None:
            named = error.token.keyword or error.argument.name.lstrip("-").upper()
            return f'{named} is {_kind(error.target_type)}, not "{_short(error.token.value)}"'
        case RepeatArgumentError():
            return f"{error.token.keyword} stands there more than once"
    return _short(str(error).rstrip("."), 300)


def _unknown_option(error: UnknownOptionError, command: str) -> str:
    said = error.token.keyword or error.token.value
    names = [name for each in error.argument_collection for name in each.names if each.parse]
    near = get_close_matches(said.partition("=")[0], names, 1, 0.6)
    return f"{_short(said)} is no option of `{command}`" + (f"; did you mean {near[0]}?" if near else "")


def _unknown_command(error: UnknownCommandError, words: list[str]) -> str:
    said = (error.unused_tokens or [""])[0]
    group = [each.split()[1] for each in EXAMPLES if each.split()[:-1] == words]
    near = get_close_matches(said, group, 1, 0.6)
    if said.startswith("-"):
        return f"`{' '.join(['squidbot', *words])}` needs one of: {', '.join(group)}."
    known = (
        f"Did you mean `{' '.join(['squidbot', *words, near[0]])}`?"
        if near
        else f"There are: {', '.join(group)}."
    )
    return f"there is no command `{' '.join(['squidbot', *words, _short(said)])}`. {known}"


def _kind(target: Any) -> str:
    if get_origin(target) is Literal:
        return f"one of {', '.join(map(str, get_args(target)))}"
    if isinstance(target, type) and issubclass(target, Enum):
        return f"one of {', '.join(each.lower() for each in target.__members__)}"
    return _KINDS.get(target, "something else")


def _short(text: str, chars: int = _SHOWN) -> str:
    return text if len(text) <= chars else f"{text[:chars]}…"
