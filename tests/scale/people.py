"""
Virtual people: who says what when, and whether each saying had one answer, in order, in its place.

Every saying has a number of its own, which the echo model repeats.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

_NUMBER = re.compile(r"#(\d+)")
_WORDS = "a sentence of an ordinary length, as people write them when they want to know something"


@dataclass(slots=True)
class Asked:
    """One saying; times are monotonic seconds."""

    place: tuple[str, str]
    said_at: float
    answered_at: float = 0.0
    answers: int = 0


@dataclass
class Ledger:
    """What was said and what came back."""

    asked: dict[int, Asked] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    _last: dict[tuple[str, str], int] = field(default_factory=dict)

    def say(self, place: tuple[str, str], now: float) -> int:
        """The number of the next saying."""
        number = len(self.asked) + 1
        self.asked[number] = Asked(place, now)
        return number

    def answer(self, account: str, conversation: str, text: str, now: float) -> int | None:
        """People see an answer; the number that it answers first, if it is one."""
        place = (account, conversation)
        found = _NUMBER.search(text)
        asked = None if found is None else self.asked.get(int(found[1]))
        if found is None or asked is None:
            self.wrong.append(f"{place}: {text[:80]!r} answers nothing")
            return None
        number = int(found[1])
        if asked.place != place:
            self.wrong.append(f"#{number} of {asked.place} was answered in {place}")
        asked.answers += 1
        if asked.answers > 1:
            self.wrong.append(f"#{number} was answered {asked.answers} times")
            return None
        if number < self._last.get(place, 0):
            self.wrong.append(f"#{number} of {place} was answered behind #{self._last[place]}")
        self._last[place] = number
        asked.answered_at = now
        return number

    def problems(self) -> list[str]:
        """Everything that is wrong; empty if each saying has one answer, in order, in its place."""
        lost = [f"#{number} was not answered" for number, asked in self.asked.items() if not asked.answers]
        return [*self.wrong, *lost]


class People:
    """
    Everybody who talks.

    Args:
        say: Hands a text in: account, conversation, text.
        seed: For who is next.
    """

    def __init__(self, say: Callable[[str, str, str], None], *, seed: int = 1) -> None:
        self.ledger = Ledger()
        self._say = say
        self._chance = random.Random(seed)
        self._waiting: dict[int, asyncio.Event] = {}
        self._busy: set[tuple[str, str]] = set()

    def hear(self, account: str, conversation: str, text: str) -> None:
        """An answer has come."""
        number = self.ledger.answer(account, conversation, text, time.monotonic())
        if number is not None:
            self._busy.discard((account, conversation))
            if (event := self._waiting.pop(number, None)) is not None:
                event.set()

    def ask(self, place: tuple[str, str]) -> tuple[int, asyncio.Event]:
        """Say the next thing there; its number, and what is set when the answer has come."""
        number = self.ledger.say(place, time.monotonic())
        event = self._waiting[number] = asyncio.Event()
        self._say(*place, f"#{number} {_WORDS}")
        return number, event

    async def at_once(self, places: Sequence[tuple[str, str]], *, waiting: int, seconds: float) -> float:
        """So many people always wait for an answer, each time in another conversation; returns answers per second."""
        begun, ends = time.monotonic(), time.monotonic() + seconds
        done = 0

        async def one() -> None:
            nonlocal done
            while time.monotonic() < ends:
                place = self._free(places)
                _, event = self.ask(place)
                with anyio.move_on_after(60):
                    await event.wait()
                if begun + seconds * 0.15 <= time.monotonic() <= ends:
                    done += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(min(waiting, len(places))):
                tasks.start_soon(one)
        return done / (seconds * 0.85)

    async def paced(
        self, places: Sequence[tuple[str, str]], *, rate: float, seconds: float
    ) -> Sequence[Asked]:
        """People come at random moments, so many in a second; returns what they said, all of it answered or given up."""
        numbers, events = [], []
        begun, due = time.monotonic(), 0.0
        while (due := due + self._chance.expovariate(rate)) < seconds:
            await anyio.sleep(max(0.0, begun + due - time.monotonic()))
            number, event = self.ask(self._free(places))
            numbers.append(number)
            events.append(event)
        with anyio.move_on_after(60):
            for event in events:
                await event.wait()
        return [self.ledger.asked[number] for number in numbers]

    async def quiet(self, *, within_s: float) -> None:
        """Wait until everything is answered, and a moment longer, in which a second answer would come."""
        with anyio.move_on_after(within_s):
            while self._waiting:
                await anyio.sleep(0.05)
        await anyio.sleep(0.5)

    def _free(self, places: Sequence[tuple[str, str]]) -> tuple[str, str]:
        for _ in range(50):
            place = self._chance.choice(places)
            if place not in self._busy:
                break
        self._busy.add(place)
        return place
