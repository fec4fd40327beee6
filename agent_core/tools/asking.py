"""
Asking the person of a turn while a tool runs, and limits that do not count the time of such a question.

Most questions are asked before a tool runs, and the turn waits without a place (`agent_core.tools.policy`).
A program that runs already and wants to know something cannot be left like that: it waits, and so does its
turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

from agent_core.tools.forms import Form, Value

__all__ = ["LONGEST_WAIT_S", "Asker", "PersonPort", "Reply", "asker", "limited", "person_of_turn"]

LONGEST_WAIT_S = 600.0
"""So long the questions of one call may wait for their answers, all together."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What became of a question.

    Args:
        content: What was filled in, if it was accepted.
        why: In a few words, for a model, such as ``the person said no``.
    """

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Value] | None = None
    why: str = ""


class PersonPort(Protocol):
    """Whoever waits for the answer of a turn."""

    async def fill_in(self, form: Form, *, seconds: float) -> Reply:
        """Ask, and wait for the answer. Raises nothing but cancellation."""
        ...


_person: ContextVar[PersonPort | None] = ContextVar("person_of_turn", default=None)
_limits: ContextVar[tuple[anyio.CancelScope, ...]] = ContextVar("limits_of_call", default=())


@contextmanager
def person_of_turn(person: PersonPort) -> Iterator[None]:
    """While inside, `asker` asks this person."""
    token = _person.set(person)
    try:
        yield
    finally:
        _person.reset(token)


@contextmanager
def limited(seconds: float) -> Iterator[anyio.CancelScope]:
    """As `anyio.move_on_after`, but time in which a person is asked does not count."""
    with anyio.move_on_after(seconds) as scope:
        token = _limits.set((*_limits.get(), scope))
        try:
            yield scope
        finally:
            _limits.reset(token)


class Asker:
    """Asks for one call, from whatever task."""

    def __init__(self, person: PersonPort, limits: tuple[anyio.CancelScope, ...]) -> None:
        self._person = person
        self._limits = limits
        self._left_s = LONGEST_WAIT_S
        self._lock = anyio.Lock()

    def over(self, scope: anyio.CancelScope) -> None:
        """This limit does not count the time of questions either."""
        self._limits = (*self._limits, scope)

    async def ask(self, form: Form) -> Reply:
        """One question after the other."""
        async with self._lock:
            if self._left_s <= 0:
                return Reply("cancel", why="nobody answered in time")
            began = anyio.current_time()
            left = [scope.deadline - began for scope in self._limits]
            for scope in self._limits:
                scope.deadline = math.inf
            try:
                return await self._person.fill_in(form, seconds=self._left_s)
            finally:
                now = anyio.current_time()
                self._left_s -= now - began
                for scope, left_s in zip(self._limits, left, strict=True):
                    scope.deadline = now + left_s


def asker() -> Asker | None:
    """Asks the person of the turn in hand; None: there is nobody to ask."""
    person = _person.get()
    return None if person is None else Asker(person, _limits.get())
