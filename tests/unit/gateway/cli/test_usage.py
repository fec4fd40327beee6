"""What is shown of the spending: sums by each name, the chart, and a notice once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from agent_core.models import Purpose, Usage
from gateway.operations.operation_context import OperationContext, UsageSources
from gateway.operations.render.usage_text import bar, shorten
from gateway.operations.render.usage_text import usage as shown
from gateway.routing.access import Access, Alias
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending
from tests.clock import ManualClock
from tests.contract.queue_data import ROOM, pending
from tests.doubles.budget import limits


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock, synchronous="normal") as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class TestUsage:
    async def test_the_dearest_turns(self, store, clock):
        """With the number by which `inbox show` shows the message, and where it was; a guest is not told."""
        await store.inbox.accept("matrix", "@bot:hs.test", [pending("a")], {})
        turn = await store.turns.claim(ROOM)
        spent = Usage(prompt_tokens=900, completion_tokens=100, calls=2, cost_usd=0.25)
        await store.usage.add(ROOM, spent, Purpose.CHAT)
        await store.turns.complete(turn, Completion(spent=spent))
        costs = UsageSources(store.usage, limits(), clock)
        answer = await OperationContext(store, None, costs=costs).call("usage", {})  # type: ignore[arg-type]
        [one] = answer["dearest"]
        assert (one["id"], one["session"], one["cost_usd"]) == (turn.rows[-1].id, str(ROOM), 0.25)
        told = shown(answer, 80)
        assert "the dearest turns:" in told
        assert "1,000  0.25 $, 2 calls" in told
        assert max(map(len, told.splitlines())) <= 80

    async def test_sums_by_person(self, store, clock):
        """Both private conversations of a person are one sum, the owner's are the owner's, and a room is a room."""
        said = (
            ("a1", "@ann:hs.test", Audience.DIRECT),
            ("b1", "@bob:hs.test", Audience.DIRECT),
            ("b2", "@bob:hs.test", Audience.DIRECT),
            ("room", "@bob:hs.test", Audience.GROUP),
        )
        for name, person, audience in said:
            session = SessionKey("matrix", name)
            message = InboundMessage(
                channel="matrix", account="@bot:hs.test", native_id=name, session=session, audience=audience,
                sender=Sender(address=person, verified=True), text="x", received_at=clock.now(),
            )  # fmt: skip
            await store.inbox.accept("matrix", "@bot:hs.test", [Pending(message)], {})
            await store.usage.add(session, Usage(prompt_tokens=10, calls=1, model="a"), Purpose.CHAT)
        access = Access([Alias(channel="matrix", address="@ann:hs.test")], {})
        costs = UsageSources(store.usage, limits(100), clock)
        desk = OperationContext(store, memory=None, costs=costs, access=access)  # type: ignore[arg-type]
        rows = (await desk.call("usage", {"by": "person"}))["rows"]
        sums = {row["name"]: row["prompt_tokens"] for row in rows}
        assert sums == {"@bob:hs.test": 20, "owner": 10, "matrix/room": 10}
        assert rows[0]["name"] == "@bob:hs.test"

    async def test_sums_by_each_name_and_the_budget(self, store, clock):
        """By day with empty days, by purpose, session and model the largest first, and what is not priced."""
        await store.usage.add(ROOM, Usage(prompt_tokens=5, calls=1, cost_usd=0.5, model="a"), Purpose.CHAT)
        clock.advance(2 * 86_400)
        other = SessionKey("test", "other")
        await store.usage.add(other, Usage(prompt_tokens=50, calls=2, model="b"), Purpose.HEARTBEAT)
        desk = OperationContext(store, memory=None, costs=UsageSources(store.usage, limits(100), clock))  # type: ignore[arg-type]
        by = {
            by: await desk.call("usage", {"days": 3, "by": by})
            for by in ("day", "purpose", "session", "model")
        }
        assert [row["name"] for row in by["day"]["rows"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
        assert [row["name"] for row in by["purpose"]["rows"]] == ["heartbeat", "chat"]
        assert [row["name"] for row in by["model"]["rows"]] == ["b", "a"]
        assert by["day"]["total"] == {
            "calls": 3,
            "prompt_tokens": 55,
            "completion_tokens": 0,
            "cached_tokens": 0,
            "thinking_tokens": 0,
            "cost_usd": 0.5,
            "priced": False,
        }
        assert by["day"]["budget"]["tokens"] == {"spent": 50, "limit": 100}
        assert "(50%)" in shown(by["day"])
        assert "for heartbeat 50, chat 5  0.50 $" in shown(by["day"], 200)
        assert "some prices are unknown" in shown(by["day"])
        assert (await desk.call("usage", {"days": 1, "by": "session"}))["total"]["prompt_tokens"] == 50

    @given(
        st.lists(st.tuples(st.text(max_size=80), st.integers(0, 10**9)), min_size=1, max_size=8),
        st.integers(40, 200),
    )
    def test_no_line_of_the_chart_is_wider_than_the_terminal(self, rows, width):
        """Whatever names and numbers there are, in a narrow terminal too; a bar is there for what is not 0."""
        told = [
            {"name": name, "calls": 1, "prompt_tokens": tokens, "completion_tokens": 0, "cost_usd": None}
            for name, tokens in rows
        ]
        total = {"calls": 1, "prompt_tokens": 1, "completion_tokens": 0, "cost_usd": None, "priced": True}
        budget = {"tokens": {"limit": None}, "usd": {"limit": None}}
        answer = {"rows": told, "by": "session", "days": 1, "total": total, "budget": budget, "purposes": []}
        text = shown(answer, width)
        chart = text.split("\n")[: len(rows)]
        assert all(len(line) <= width for line in chart)
        for line, (_, tokens) in zip(chart, rows, strict=True):
            assert any(block in line for block in "▏▎▍▌▋▊▉█") or not tokens

    @given(st.floats(0, 1), st.integers(1, 60))
    def test_a_bar_is_as_long_as_its_part(self, part, width):
        """Between nothing and everything, in eighths of a character, always of the same width."""
        drawn = bar(part, width)
        assert len(drawn) == width
        assert abs(drawn.count("█") - part * width) < 1.1

    def test_long_names_keep_both_ends(self):
        """The middle is left out, never the ends."""
        assert shorten("matrix/!abcdefghijklmnop:server.example", 15) == "matrix/…example"
        assert shorten("short", 15) == "short"

    async def test_a_hundred_thousand_rows_are_summed_quickly(self, store, clock):
        """Each row of a database of years is looked at once, and those of other days not at all."""

        def fill(db: object) -> None:
            db.executemany(  # type: ignore[attr-defined]
                "INSERT INTO usage VALUES (?, ?, 'chat', 'm', 10, 10, 1, NULL, 0, 0)",
                (
                    (f"2026-{1 + day // 28:02}-{1 + day % 28:02}", f"test/{n}")
                    for day in range(200)
                    for n in range(500)
                ),
            )

        await store.database.writer.call("fill", fill)
        steps = [0]

        def count() -> None:
            steps[0] += 1

        await store.usage._reader.call("count", lambda db: db.set_progress_handler(count, 1_000))
        took = []
        for by in ("day", "session"):
            steps[0] = 0
            rows = await store.usage.usage_since(since="2026-01-01", by=by)
            took.append(steps[0])
            assert sum(row.usage.calls for row in rows) == 100_000
        assert all(2_000 < each < 10_000 for each in took), took
        steps[0] = 0
        await store.usage.usage_on("2026-03-03")
        assert steps[0] < 50


class TestOnce:
    async def test_a_notice_is_posted_once_for_each_value(self, store):
        """The same name and value again: nothing; another value: again."""
        from gateway.store.stores import NewOutbound

        note = [NewOutbound("test", "", ROOM, "text")]
        assert len(await store.outbox.post(note, once=("budget", "2026-01-01"))) == 1
        assert await store.outbox.post(note, once=("budget", "2026-01-01")) == []
        assert len(await store.outbox.post(note, once=("budget", "2026-01-02"))) == 1
        assert len(await store.outbox.rows()) == 2
