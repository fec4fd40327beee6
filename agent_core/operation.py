"""
Declares what an operator can request. One declaration on an async function gives the command of the command
line, the route of the control socket with checked arguments, the help and the console's button.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

Answer = Mapping[str, Any]
_Function = TypeVar("_Function", bound=Callable[..., Awaitable[Answer]])
_MARK = "__operation__"


@dataclass(frozen=True, slots=True)
class Option:
    """An argument at the prompt: its flag and its help, where its name and the docstring do not give them."""

    flag: str = ""
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    A request and everything that its callers must know of it.

    Args:
        name: The words of the command.
        key: The name on the control socket.
        run: Takes the context and the arguments: keyword-only ones are options, the others words.
        writes: It changes something, so on a home at rest nobody else may work meanwhile.
        needs: What a home at rest must prepare: "home" (memory, jobs, files), "settings" (valid ones),
            "search", "mcp".
        is_command: It is a command; False: a request of programs and the console.
        render: The answer as text for people.
        fails: Returns True for an answer after which the command ends with 1.
        reads: An argument that is read from the standard input, if it is not given.
        confirm: The question before the command does it, with the arguments in braces.
        done: The console has a button for it, and says this afterwards.
    """

    name: str
    key: str
    run: Callable[..., Awaitable[Answer]]
    writes: bool
    needs: Collection[str]
    is_command: bool
    render: Callable[[Any], str]
    fails: Callable[[Any], bool]
    reads: str
    confirm: str
    done: str


def operation(
    name: str,
    *,
    writes: bool,
    render: Callable[[Any], str] | None = None,
    key: str = "",
    needs: Collection[str] = ("home",),
    fails: Callable[[Any], bool] | None = None,
    reads: str = "",
    confirm: str = "",
    done: str = "",
) -> Callable[[_Function], _Function]:
    """Declare an operation, see `Operation`; without ``render`` it is no command."""

    def declare(function: _Function) -> _Function:
        declared = Operation(
            name=name,
            key=key or name.replace(" ", "_").replace("-", "_"),
            run=function,
            writes=writes,
            needs=needs,
            is_command=render is not None,
            render=render or str,
            fails=fails or (lambda _: False),
            reads=reads,
            confirm=confirm,
            done=done,
        )
        setattr(function, _MARK, declared)
        return function

    return declare


def operations_of(module: ModuleType) -> list[Operation]:
    """Return the operations that a module declares."""
    found = (getattr(each, _MARK, None) for each in vars(module).values())
    return [each for each in found if isinstance(each, Operation) and each.run.__module__ == module.__name__]
