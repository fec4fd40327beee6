"""
Declares what an operator can request. One declaration on an async function gives the command of the command
line, the route of the control socket with checked arguments, the help and the console's button.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from types import ModuleType
from typing import Any, TypeVar

Answer = Mapping[str, Any]
_Function = TypeVar("_Function", bound=Callable[..., Awaitable[Answer]])
_MARK = "__operation__"
_LATER: Any = None


@dataclass(frozen=True, slots=True)
class Option:
    """An argument at the prompt: its flag and its help, where its name and the docstring do not give them."""

    flag: str = ""
    help: str = ""


class Who(StrEnum):
    """The people who may call an operation in a conversation."""

    OWNER = "owner"
    """The owner, where nobody else reads along."""
    PERSON = "person"
    """Everybody who may talk to the bot: the operation shows and changes only what is theirs there."""


@dataclass(frozen=True, slots=True)
class InChat:
    """
    A command of conversations that an operation answers.

    Args:
        words: As it is typed after its ``!``; words in capitals are the arguments, in their order; with … at
            its end, the last takes all words that are left.
        render: The answer as Markdown, for the owner in private or for anybody.
        arguments: Arguments that are always the same.
    """

    words: str
    who: Who
    render: Callable[[Any, Who], str]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """
    A request and everything that its callers must know of it; decorates the function that answers it.

    Args:
        name: The words of the command.
        writes: It changes something, so on a home at rest nobody else may work meanwhile.
        render: The answer as text for people; None: it is no command, but for programs and the console.
        key: The name on the control socket, by default the words.
        needs: What a home at rest must prepare: "home" (memory, jobs, files), "settings" (valid ones),
            "search", "mcp", "accounts" (their documents; the home may be new).
        fails: Returns True for an answer after which the command ends with 1.
        reads: An argument that is read from the standard input, if it is not given.
        again: An argument that names what the answer has shown: without it the command shows, asks, and is
            called again with the answer's value of it.
        confirm: The question before the command does it, with the arguments in braces.
        done: The console has a button for it, and says this afterwards.
        chats: The commands of conversations that it answers.
        run: The function. It takes the context and the arguments: keyword-only ones are options.
    """

    name: str
    _: KW_ONLY
    writes: bool
    render: Callable[[Any], str] | None = None
    key: str = ""
    needs: Collection[str] = ("home",)
    fails: Callable[[Any], bool] | None = None
    reads: str = ""
    again: str = ""
    confirm: str = ""
    done: str = ""
    chats: Collection[InChat] = ()
    run: Callable[..., Awaitable[Answer]] = _LATER

    def __call__(self, function: _Function) -> _Function:
        """Declare a function."""
        key = self.key or self.name.replace(" ", "_").replace("-", "_")
        setattr(function, _MARK, replace(self, key=key, run=function))
        return function


operation = Operation


def operations_of(module: ModuleType) -> list[Operation]:
    """Return the operations that a module declares."""
    found = (getattr(each, _MARK, None) for each in vars(module).values())
    return [each for each in found if isinstance(each, Operation) and each.run.__module__ == module.__name__]
