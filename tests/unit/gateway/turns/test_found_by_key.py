"""What an old question, draft or stopped turn is found by: its key, however much has come since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core.messages import Amendment, OutboundKind, SessionKey
from channels.base import AckState
from gateway.queue.ports import Completion, NewOutbound
from gateway.queue.sqlite.store import SqliteQueue
from gateway.queue.states import OutboxState
from gateway.queue.wakeups import Wakeups
from gateway.routing.access import Access, Alias
from gateway.routing.acknowledgements import StaleAcknowledgements
from gateway.turns.approvals.review import ASKING, Approvals
from tests.clock import ManualClock
from tests.contract.work_store_data import BOT, OTHER, ROOM, accept, claim, message, out, pending

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


def approvals_of(store: SqliteQueue) -> Approvals:
    """A new process."""
    return Approvals(
        store=store,
        notifier=Reached(),
        access=Access([Alias(channel="matrix", address=ALICE)], {}),
        wakeups=Wakeups(),
        calls=None,
        held={},
    )


def sign(notice: str):
    """The owner's yes below a message of ours."""
    return message("sign", kind="reaction", text="👍", context={"outbound": notice})


async def asked(store: SqliteQueue) -> list[str]:
    return [row.message.native_id for row in reversed(await store.inbox.rows(session=ASKING, limit=10_000))]


async def test_a_sign_below_an_old_notice_counts(store) -> None:
    """Hundreds of messages have gone out since the owner was asked, and hundreds of questions were put."""
    approvals = approvals_of(store)
    (draft,) = await store.outbox.post([out("a draft", hold=True)])
    await approvals._find()
    context = {"approves": [f"d{draft.id}"]}
    [notice] = await store.outbox.post([NewOutbound("matrix", BOT, ROOM, "?", OutboundKind.NOTICE, context)])
    await store.outbox.post([out(f"{number}", hold=number % 2 == 0) for number in range(2 * MORE)])
    await approvals._find()
    assert (await approvals.react(sign("none of ours"))).text == ""
    told = await approvals.react(sign(notice.message.id))
    assert (await store.outbox.row(draft.id)).state is OutboxState.PENDING, told
    again = await approvals.react(sign(notice.message.id))
    assert again.text == told.text, "decided long ago, and still told in the same words"


async def test_all_parts_of_an_old_draft_are_decided(store) -> None:
    """Its parts are found by the message that they answer."""
    await accept(store, "a")
    parts = [out("1", hold=True), out("2", hold=True)]
    first, second = await store.turns.complete(await claim(store), Completion(outbound=parts))
    await store.outbox.post([out("later", hold=True) for _ in range(MORE)])
    await approvals_of(store).decide(f"d{first.id}", yes=True)
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
    await approvals._find()
    assert sorted(await asked(store)) == wanted
    await approvals._find()
    (new,) = await store.outbox.post([out("new", hold=True)])
    await approvals._find()
    await approvals_of(store)._find()
    assert sorted(await asked(store)) == sorted([*wanted, f"d{new.id}"])


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
    await looking.look()
    await looking.look()
    assert told == [f"a {AckState.FAILED}"]
