"""What an old question, draft or stopped turn is found by: its key, however much has come since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from agent_core.messages import Amendment, MessageContext, MessageNotes, OutboundKind, SessionKey
from channels.base import AckState
from gateway.routing.access import Access, Alias
from gateway.routing.acknowledgements import StaleAcknowledgements
from gateway.store.sql import maintenance_statements
from gateway.store.sql.engine import NOTHING
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import OutboxState
from gateway.store.stores import Completion, NewOutbound
from gateway.store.wakeups import Wakeups
from gateway.turns.questions.decisions import Decision
from gateway.turns.questions.questions import OWNER_QUESTIONS, Questions
from gateway.turns.questions.review_questions import ReviewQuestions
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, claim, message, out, pending

ALICE = "@alice:hs.test"
MORE = 700
"""More than any look at the newest rows would have shown."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as opened:
        yield opened


class Reached:
    """The owner can be asked."""

    target = "somewhere"

    async def reach(self, topic: str) -> Reached:
        return self


def approvals_of(store: SqliteQueue) -> ReviewQuestions:
    """A new process."""
    return ReviewQuestions(
        questions=Questions(
            store=store, access=Access([Alias(channel="matrix", address=ALICE)], {}), now=ManualClock().now
        ),
        notifier=Reached(),
        wakeups=Wakeups(),
        held={},
    )


def sign(notice: str):
    """The owner's yes below a message of ours."""
    return message("sign", kind="reaction", text="👍", context={"outbound": notice})


async def asked(store: SqliteQueue) -> list[str]:
    return [
        row.message.native_id
        for row in reversed(await store.inbox.rows(session=OWNER_QUESTIONS, limit=10_000))
    ]


async def test_a_sign_below_an_old_notice_counts(store) -> None:
    """Hundreds of messages have gone out since the owner was asked, and hundreds of questions were put."""
    approvals = approvals_of(store)
    (draft,) = await store.outbox.post([out("a draft", hold=True)])
    await approvals._ask_new_items()
    context = MessageContext(notes=MessageNotes(approves=(f"d{draft.id}",)))
    [notice] = await store.outbox.post([NewOutbound("matrix", BOT, ROOM, "?", OutboundKind.NOTICE, context)])
    await store.outbox.post([out(f"{number}", hold=number % 2 == 0) for number in range(2 * MORE)])
    await approvals._ask_new_items()
    assert await approvals.questions.react(sign("none of ours")) is None
    told = await approvals.questions.react(sign(notice.message.id))
    assert (await store.outbox.row(draft.id)).state is OutboxState.PENDING, told
    again = await approvals.questions.react(sign(notice.message.id))
    assert again.text == told.text, "decided long ago, and still told in the same words"


async def test_all_parts_of_an_old_draft_are_decided(store) -> None:
    """Its parts are found by the message that they answer."""
    await accept(store, "a")
    parts = [out("1", hold=True), out("2", hold=True)]
    first, second = await store.turns.complete(await claim(store), Completion(outbound=parts))
    await store.outbox.post([out("later", hold=True) for _ in range(MORE)])
    await approvals_of(store).questions.decide(f"d{first.id}", Decision(), sign("any"))
    assert (await store.outbox.row(second.id)).state is OutboxState.PENDING


async def test_whatever_waits_is_asked_about_once(store) -> None:
    """Also what is older than hundreds of others, an answer in two parts once, and again in another process."""
    await store.inbox.accept(
        "matrix", BOT, [pending(f"q{number}", quarantine="forged") for number in range(MORE)], {}
    )
    await accept(store, "a", session=OTHER)
    parts = [out("1", hold=True), out("2", hold=True)]
    first, _ = await store.turns.complete(await claim(store, OTHER), Completion(outbound=parts))
    drafts = await store.outbox.post([out("draft", hold=True) for _ in range(MORE)])
    wanted = sorted(
        [f"m{number}" for number in range(1, MORE + 1)] + [f"d{row.id}" for row in [first, *drafts]]
    )
    approvals = approvals_of(store)
    await approvals._ask_new_items()
    assert sorted(await asked(store)) == wanted
    await approvals._ask_new_items()
    (new,) = await store.outbox.post([out("new", hold=True)])
    await approvals._ask_new_items()
    await approvals_of(store)._ask_new_items()
    assert sorted(await asked(store)) == sorted([*wanted, f"d{new.id}"])


@pytest.mark.parametrize("by_highest", [True, False])
async def test_what_is_committed_late_with_a_low_id_is_asked_about(
    store, monkeypatch, *, by_highest: bool
) -> None:
    """Another process had taken its ids first and commits last. The control remembers the highest id, as it was."""
    if by_highest:
        besides = maintenance_statements._besides

        def after(db, waiting, known, limit):
            rows, _ = besides(db, waiting, (), limit)
            return [row for row in rows if row > max(known, default=0)], {*known, *rows}

        monkeypatch.setattr(maintenance_statements, "_besides", after)
    (late,) = await store.outbox.post([out("late", hold=True)])
    (other,) = await store.outbox.post([out("other", hold=True)])
    [kept, later] = await accept(store, "k", "l", quarantine="forged")
    moves = (
        ("UPDATE outbox SET state = ? WHERE id = ?", ("sent", "held"), late.id),
        ("UPDATE inbox SET state = ? WHERE id = ?", ("settled", "quarantined"), kept.id),
    )
    approvals = approvals_of(store)
    for step in range(2):
        for text, states, row_id in moves:
            move = partial(_run, text, (states[step], row_id))
            await store.database.writer.call("commit", move, locks=NOTHING)
        await approvals._ask_new_items()
    seen = {f"d{other.id}", f"m{later.id}"}
    assert set(await asked(store)) == (seen if by_highest else seen | {f"d{late.id}", f"m{kept.id}"})
    if not by_highest:
        await approvals.questions.decide(f"d{other.id}", Decision(), sign("any"))
        await approvals._ask_new_items()
        assert (approvals._drafts_known, approvals._kept_known) == ({late.id}, {kept.id, later.id})


def _run(text: str, arguments: tuple[object, ...], db) -> None:
    db.execute(text, arguments)


async def test_a_question_taken_back_is_found_behind_the_talk_of_a_group(store) -> None:
    """Its mark is cleared, although hundreds of messages were ignored since that nobody had asked the bot."""
    told: list[str] = []

    class Marks:
        def report(self, messages, state) -> None:
            told.extend(f"{one.native_id} {state}" for one in messages)

    await accept(store, "a")
    await claim(store)
    stop = Amendment(kind="withdraw", native_id="a", sender=ALICE)
    await store.inbox.accept("matrix", BOT, [], {}, [stop])
    group = SessionKey("matrix", "!group:hs.test")
    talk = [pending(f"t{number}", session=group, ignore="not_addressed") for number in range(MORE)]
    await store.inbox.accept("matrix", BOT, talk, {})
    looking = StaleAcknowledgements(store, Marks(), {})
    await looking.clear_stale()
    await looking.clear_stale()
    assert told == [f"a {AckState.FAILED}"]
