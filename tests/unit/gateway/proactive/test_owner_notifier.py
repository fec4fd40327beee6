"""The one path to the owner: the place, the parts, and that each message is posted once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from agent_core.messages import SessionKey
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.clock import ManualClock
from tests.owner_world import Owner

ROOM = SessionKey("matrix", "dm-@ann:hs.test")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    made = await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock(), synchronous="normal")
    yield made
    await made.aclose()


@pytest.fixture
async def owner(store: SqliteQueue) -> Owner:
    owner = Owner(store)
    await owner.learn()
    return owner


def notifier_of(owner: Owner) -> OwnerNotifier:
    return OwnerNotifier(owner.store, owner.target, owner.clock)


async def test_a_text_beyond_the_channels_limit_goes_in_parts(owner: Owner, store: SqliteQueue) -> None:
    """Whoever it comes from: all of it arrives, in parts that the channel takes, and the parts are posted once."""
    limit = owner.target.channels["matrix"].capabilities.max_text_bytes
    text = "\n\n".join(f"{number}: {'word ' * 100}" for number in range(limit // 400))
    for _ in range(2):
        await notifier_of(owner).notify("notes", text, once=("subject", "value"))
    parts = [row.message.text for row in reversed(await store.outbox.rows())]
    assert len(parts) > 1
    assert max(len(part.encode()) for part in parts) <= limit
    assert "".join("".join(parts).split()) == "".join(text.split())
    await notifier_of(owner).notify("notes", "short", once=("subject", "another value"))
    assert len(await store.outbox.rows()) == len(parts) + 1


async def test_only_what_is_to_be_remembered_is_in_the_history(owner: Owner, store: SqliteQueue) -> None:
    """A model reads what stands there, so what strangers may have written is not."""
    notifier = notifier_of(owner)
    await notifier.notify("notes", "a stranger's subject", once=("digest", "1"))
    assert await store.journal.lines(session=ROOM) == []
    await notifier.notify("check-ins", "none has run", once=("check-ins", "1"), remember=True)
    assert [line.message.content for line in await store.journal.lines(session=ROOM)] == ["none has run"]


async def test_what_is_committed_with_something_else_is_only_composed(
    owner: Owner, store: SqliteQueue
) -> None:
    """Its context is on each part, and nothing is posted here."""
    composed = await notifier_of(owner).compose("approvals", "May I?", {"approves": ["d1"]})
    assert composed is not None
    assert [(one.session, dict(one.context)) for one in composed] == [(ROOM, {"approves": ["d1"]})]
    assert await store.outbox.rows() == []


async def test_without_a_place_the_reason_is_returned_and_logged_once(
    owner: Owner, store: SqliteQueue
) -> None:
    """A channel that is switched off is no place; with it (the control) there is one, and it is logged anew after."""
    notifier, on = notifier_of(owner), owner.target.channels
    with structlog.testing.capture_logs() as logs:
        for channels in ({}, {}, on, {}):
            owner.target.channels = channels
            reached = await notifier.notify("notes", "hello")
            assert (reached.target is None) == (not channels)
    assert "switched off" in reached.why
    assert [line["event"] for line in logs] == ["owner.not_reached", "owner.notified", "owner.not_reached"]
    assert len(await store.outbox.rows()) == 1
    assert await notifier.compose("approvals", "May I?") is None
