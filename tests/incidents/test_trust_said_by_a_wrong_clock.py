"""
``!trust`` is for what has come in until then, by the clock. A machine's clock was an hour ahead when the owner said it,
or went back a day after that, and was mended: what a stranger wrote meanwhile bore an earlier time than the owner's
word. As soon as the clock had passed that time, it counted as the owner's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.clock import EPOCH, ManualClock
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import Scenario, world
from tests.integration.test_taint import _PAGE, ANN, Notes, Obedient, Reader, reject

pytestmark = pytest.mark.integration
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MINUTE = timedelta(minutes=1)


class Settable(ManualClock):
    """A clock of the wall that somebody sets; the machine's own goes on."""

    def set(self, to: datetime) -> None:
        self._now = to


@asynccontextmanager
async def house(root: Path, clock: Settable, notes: Notes) -> AsyncIterator[Scenario]:
    owner = {"aliases": [{"channel": "matrix", "address": ANN}]}
    async with world(
        root,
        server=LoopbackServer(),
        name="matrix",
        settings={"owner": owner},
        models={"demo": Obedient()},
        tools=[Reader(_PAGE), notes],
        clock=clock,
    ) as one:
        yield one


@pytest.mark.parametrize(
    ("said_at", "read_at", "asks"),
    [
        (EPOCH + HOUR, EPOCH, True),  # said by a clock that was ahead
        (EPOCH, EPOCH - DAY, True),  # and then the clock went back
        (EPOCH, EPOCH + MINUTE, True),  # what came after it, by a clock that was right
        (EPOCH, None, False),  # the control: what came before it
    ],
)
async def test_what_came_after_it_is_asked_about(
    tmp_path: Path, said_at: datetime, read_at: datetime | None, asks: bool
) -> None:
    clock, notes = Settable(said_at), Notes()
    async with house(tmp_path, clock, notes) as one:
        if read_at is None:
            await one.asked("read the page and only repeat it", person=ANN)
        clock.set(said_at + MINUTE)
        assert "until now" in (await one.asked("!trust", person=ANN)).text
        if read_at is not None:
            clock.set(read_at + 2 * MINUTE)
            await one.asked("read the page and only repeat it", person=ANN)
        clock.set(EPOCH + 2 * DAY)
        told = (await one.asked("good morning", person=ANN)).text
        assert ("It may not be your idea" in told) is asks
        if asks:
            await reject(one, told)
    assert bool(notes.kept) is not asks
