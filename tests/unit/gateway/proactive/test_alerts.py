"""What the owner is told without having asked: what is in quarantine, and alerts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.messages import OutboundKind
from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.wakeups import Alert
from tests.clock import ManualClock
from tests.owner_world import Owner


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    made = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock(), synchronous="normal")
    yield made
    await made.aclose()


class TestOwnerNotes:
    async def test_quarantine_is_told_once_a_day(self, store: SqliteQueue) -> None:
        """Nothing while there is nothing; then one message, and the next a day later, if there is something new."""
        owner = Owner(store)
        await owner.learn()
        assert await owner.told() == []
        await owner.keep(1, 2)
        (first,) = await owner.told()
        await owner.keep(3)
        assert len(await owner.told()) == 1
        owner.clock.advance(86_000)
        assert len(await owner.told()) == 1
        owner.clock.advance(800)
        _, second = await owner.told()
        owner.clock.advance(timedelta(days=3).total_seconds())
        assert len(await owner.told()) == 2, "nothing new"

        assert first.message.session.channel == "matrix"
        assert "2 messages are quarantined" in first.message.text
        assert "`Bill '2' **now**`" in first.message.text
        assert "3 messages are quarantined" in second.message.text

    async def test_its_times_are_those_of_the_home(
        self, store: SqliteQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With their zone; and a reason without more to say of it has no colon."""
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            owner = Owner(store)
            await owner.learn()
            at = (owner.clock.now() + timedelta(hours=9)).strftime("%Y-%m-%d %H:%M JST")
            await owner.keep(1)
            (row,) = await owner.told()
        finally:
            monkeypatch.undo()
            time.tzset()
        assert f"- **m1**, {at}, `" in row.message.text
        assert ": -)" not in row.message.text

    async def test_without_a_place_to_tell_it_waits(self, store: SqliteQueue) -> None:
        """The owner has never written: nothing is lost, and it is told as soon as he has."""
        owner = Owner(store)
        await owner.keep(1)
        assert await owner.told() == []
        await owner.learn()
        assert len(await owner.told()) == 1

    async def test_a_flood_is_one_message_of_bounded_length(self, store: SqliteQueue) -> None:
        """Two hundred forged mails ring once."""
        owner = Owner(store)
        await owner.learn()
        await owner.keep(*range(1, 201))
        (row,) = await owner.told()
        assert "and 180 more" in row.message.text
        assert len(row.message.text) < 4_000

    async def test_alerts(self, store: SqliteQueue) -> None:
        """At once, what is there together is one message, and the same thing is told once an hour."""
        owner = Owner(store)
        await owner.learn()
        for _ in range(3):
            owner.wakeups.alert.fire(Alert("brake", "stopped"))
        now = owner.clock.now()
        status = ChannelStatus(
            "email",
            "bot@mail.test",
            LinkState.FAILED,
            now,
            "wrong password",
            retry_at=now + timedelta(minutes=5),
        )
        owner.notes.note_channel(status)
        (row,) = await owner.told()
        assert row.message.kind is OutboundKind.ALERT
        assert row.message.text.count("stopped") == 1
        at = f"{now + timedelta(minutes=5):%Y-%m-%d %H:%M UTC}"
        told = f"needs you: wrong password\n\nI try again at {at}; restart me to try at once."
        assert f"The channel email {told}" in row.message.text, row.message.text
        owner.notes.alert("brake", "stopped")
        assert len(await owner.told()) == 1
        owner.clock.advance(3601)
        owner.notes.alert("brake", "stopped")
        assert len(await owner.told()) == 2
