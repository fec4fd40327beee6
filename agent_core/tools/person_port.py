"""
Asks the person of a turn while a tool runs; the time limits of the call do not count that time. Most
questions are asked before a tool runs, and the turn waits without a place (`agent_core.tools.policy`). A
running program that asks something cannot be suspended like that: it waits, and its turn waits with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

from agent_core.tools.forms import Form, Value

MAX_WAIT_S = 600.0
"""The time for which all questions of one turn together may wait: a turn has a limit, too."""

_SHORTEST_WAIT_S = 1.0
"""A question that nobody could answer in time is not put."""


@dataclass(frozen=True, slots=True)
class FormReply:
    """The result of a question; ``why`` is a short reason for a model."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Value] | None = None
    why: str = ""


class PersonPort(Protocol):
    """The person who waits for the answer of a turn."""

    async def fill_in(self, form: Form, *, seconds: float) -> FormReply:
        """Ask, and wait for the answer. Raises nothing but cancellation."""
        ...


class _Budget:
    """The time in which a person is asked, however many questions wait in it."""

    def __init__(self) -> None:
        self._left_s = MAX_WAIT_S
        self._open = 0
        self._since = 0.0

    @property
    def left_s(self) -> float:
        return self._left_s - (anyio.current_time() - self._since if self._open else 0.0)

    @contextmanager
    def spend(self) -> Iterator[None]:
        """While inside, it is spent."""
        if not self._open:
            self._since = anyio.current_time()
        self._open += 1
        try:
            yield
        finally:
            self._left_s, self._since = self.left_s, anyio.current_time()
            self._open -= 1


class _Limit:
    """A scope whose time stands still while anybody asks within it."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._open = 0
        self._left_s = 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While inside, its time does not count."""
        if not self._open:
            self._left_s = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._scope.deadline = anyio.current_time() + self._left_s


_person: ContextVar[tuple[PersonPort, _Budget] | None] = ContextVar("person_of_turn", default=None)
_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("limits_of_call", default=())


@contextmanager
def person_of_turn(person: PersonPort) -> Iterator[None]:
    """Inside the block, `asker` asks this person, no longer than `MAX_WAIT_S`."""
    token = _person.set((person, _Budget()))
    try:
        yield
    finally:
        _person.reset(token)


@contextmanager
def limit_time(seconds: float) -> Iterator[anyio.CancelScope]:
    """Like `anyio.move_on_after`, but the time of a question to a person does not count."""
    with anyio.move_on_after(seconds) as scope:
        token = _limits.set((*_limits.get(), _Limit(scope)))
        try:
            yield scope
        finally:
            _limits.reset(token)


class FormDialogue:
    """Asks for one call, from any task."""

    def __init__(self, person: PersonPort, budget: _Budget, limits: tuple[_Limit, ...]) -> None:
        self._person = person
        self._budget = budget
        self._limits = limits
        self._lock = anyio.Lock()

    def exclude_from(self, scope: anyio.CancelScope) -> None:
        """Let this limit not count the time of questions either."""
        self._limits = (*self._limits, _Limit(scope))

    async def ask(self, form: Form) -> FormReply:
        """Ask one question at a time."""
        async with self._lock:
            if (seconds := self._budget.left_s) < _SHORTEST_WAIT_S:
                return FormReply("cancel", why="nobody answered in time")
            with ExitStack() as waiting:
                waiting.enter_context(self._budget.spend())
                for limit in self._limits:
                    waiting.enter_context(limit.pause())
                return await self._person.fill_in(form, seconds=seconds)


def asker() -> FormDialogue | None:
    """The asker for the person of the current turn; None: there is nobody to ask."""
    found = _person.get()
    return None if found is None else FormDialogue(*found, _limits.get())
