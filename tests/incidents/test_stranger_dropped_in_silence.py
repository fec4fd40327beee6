"""
README said that the owner decides about all mail that is not answered. That of proven people whom nobody had let in was
dropped with a line in the log: whoever wrote to the bot before being in ``allow_from`` was lost without a trace.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_core.messages import Audience, Sender, SessionKey
from gateway.operations.operation_context import OperationContext
from gateway.routing import admissions
from gateway.routing.access import Access, Alias, is_admitted
from gateway.routing.conversations import Conversations
from gateway.routing.intake import AcceptGate, ChannelInbox
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import UNINVITED, UNINVITED_S, IllegalMove, InboxState
from tests.clock import ManualClock
from tests.contract.erasure import erased
from tests.contract.queue_data import message
from tests.owner_world import Owner

BOT = "bot@mail.test"
ALICE, CAROL, EVE = "alice@mail.test", "carol@else.test", "eve@evil.test"


def access() -> Access:
    return Access([Alias("email", ALICE)], {"email": ()})


def mail(native_id: str, sender: str = CAROL, *, verified: bool = True, text: str = "hello", **more):
    return message(
        native_id,
        session=SessionKey("email", "thread-" + "0" * 24, sender),
        sender=Sender(address=sender, verified=verified),
        text=text,
        account=BOT,
        **more,
    )


class Harness:
    def __init__(self, store: SqliteQueue, clock: ManualClock) -> None:
        self.store, self.clock, self.access = store, clock, access()
        self.inbox = ChannelInbox(
            cast("Any", SimpleNamespace(name="email", account=BOT)),
            store=store,
            conversations=Conversations(self.access),
            intake=AcceptGate(),
            report=lambda *_: None,
        )

    async def states(self) -> dict[str, tuple[str, str | None]]:
        rows = await self.store.inbox.rows(states=list(InboxState), limit=1000)
        return {row.message.native_id: (row.state.value, row.error) for row in rows}


@pytest.fixture
async def house(tmp_path: Path):
    clock = ManualClock()
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock, synchronous="normal") as store:
        yield Harness(store, clock)


async def test_a_proven_stranger_is_kept_and_a_forged_one_is_not(house: Harness) -> None:
    """Kept with the text, without files; it wakes nobody, and nothing of it goes to a model."""
    context = {"quarantine": "sender_not_verified", "subject": "s"}
    await house.inbox.accept(
        [
            mail("a", context={"subject": "s"}),
            mail("b", EVE, verified=False, context=context),
            mail("c", ALICE),
        ]
    )
    assert await house.states() == {
        "a": ("quarantined", UNINVITED),
        "b": ("ignored", UNINVITED),
        "c": ("ready", None),
    }


async def test_to_let_somebody_in_answers_what_was_kept(house: Harness) -> None:
    """Of that person alone, as of an allowed person; and the next mail needs no decision, over a restart too."""
    await house.inbox.accept([mail("a"), mail("b", EVE)])
    done = await admissions.admit_person(house.store, house.access, "Carol@Else.Test")
    assert (done.address, list(done.channels), done.messages) == (CAROL, ["email"], 1)
    await house.inbox.accept([mail("c")])
    assert await house.states() == {
        "a": ("ready", None),
        "b": ("quarantined", UNINVITED),
        "c": ("ready", None),
    }
    (row,) = [row for row in await house.store.inbox.rows() if row.message.native_id == "a"]
    assert not is_admitted(row.message)
    assert (await admissions.admit_person(house.store, house.access, CAROL)).messages == 0, (
        "a command that is repeated"
    )

    again = access()
    assert not again.decide(mail("d")).allowed
    await admissions.load(house.store, again)
    assert again.decide(mail("d")).allowed
    await admissions.revoke_admission(house.store, again, CAROL)
    assert not again.decide(mail("d")).allowed
    assert (await admissions.revoke_admission(house.store, again, CAROL)).problem
    assert (await admissions.admit_person(house.store, again, "@x:hs.test")).problem


async def test_the_bots_own_address_is_not_let_in(house: Harness) -> None:
    """It was said that it may write now; what comes from there is never answered."""
    mine = Access([], {"email": (ALICE,)}, own=["Bot@mail.test"])
    done = await admissions.admit_person(house.store, mine, "bot@Mail.test")
    assert (list(done.channels), done.problem) == ([], "is my own address")
    assert await house.store.state.read("let-in:email") is None
    assert not (await admissions.admit_person(house.store, mine, CAROL)).problem


async def test_who_may_write_already_is_not_let_in_again(house: Harness) -> None:
    """Otherwise "may write to me now" would be said of the owner's own mail that proves nothing."""
    done = await admissions.admit_person(house.store, house.access, ALICE)
    assert (list(done.channels), done.problem.partition(";")[0]) == ([], "may write to me already")
    assert done.problem.endswith("under its name, as m7")
    assert await house.store.state.read("let-in:email") is None


async def test_one_message_may_be_answered_without_letting_its_sender_in(house: Harness) -> None:
    """`!approve m7` of a stranger's mail: it is a stranger's still, and cannot command anything."""
    await house.inbox.accept([mail("a")])
    (row,) = await house.store.inbox.rows()
    await house.store.inbox.admit(row.id)
    (row,) = await house.store.inbox.rows()
    assert row.state is InboxState.READY
    assert is_admitted(row.message)


async def test_what_is_kept_is_bounded(house: Harness) -> None:
    """Few of one, some of all, and only the beginning of a long one; what exceeds that is listed."""
    await house.inbox.accept([mail(f"a{number}", text="x" * 50_000) for number in range(8)])
    await house.inbox.accept([mail(f"b{number}", f"p{number}@evil.test") for number in range(120)])
    await house.inbox.accept([mail("owner", ALICE)])
    states = await house.states()
    assert sum(states[f"a{number}"][0] == "quarantined" for number in range(8)) == admissions.MAX_OF_ONE
    assert sum(state == ("quarantined", UNINVITED) for state in states.values()) == admissions.MAX_KEPT
    assert states["owner"] == ("ready", None)
    rows = await house.store.inbox.quarantined_as(UNINVITED)
    assert max(len(row.message.text) for row in rows) < 21_000
    operations = OperationContext(house.store, None, access=house.access)
    assert len((await operations.call("inbox_list", {"refused": True, "limit": 1000}))["rows"]) == 128


async def test_after_two_weeks_it_is_gone(house: Harness) -> None:
    await house.inbox.accept(
        [mail("a"), mail("b", ALICE, verified=False, context={"quarantine": "sender_not_verified"})]
    )
    house.clock.advance(UNINVITED_S - 60)
    await house.store.maintenance.prune(older_than_s=90 * 86_400)
    assert (await house.states())["a"] == ("quarantined", UNINVITED)
    house.clock.advance(120)
    await house.store.maintenance.prune(older_than_s=90 * 86_400)
    assert (await house.states())["a"] == ("ignored", "quarantine_expired")
    assert (await house.states())["b"][0] == "quarantined", (
        "what an allowed person seems to have sent waits longer"
    )


async def test_the_owner_hears_of_it_once_a_day(house: Harness) -> None:
    """One line each, with what to do; what the stranger wrote is shown between marks and cannot be a link."""
    owner = Owner(house.store)
    await owner.learn()
    await house.inbox.accept([mail("a", context={"subject": "Buy `now` at https://evil.test/" + "x" * 200})])
    (told,) = await owner.told()
    assert "!allow ADDRESS" in told.message.text
    line = next(line for line in told.message.text.splitlines() if CAROL in line)
    assert line.endswith("…`")
    assert "`Buy 'now' at https" in line
    await house.inbox.accept([mail("b", EVE)])
    assert len(await owner.told()) == 1


async def test_an_invitation_waits_for_the_owner_and_is_not_answered(house: Harness) -> None:
    """It stands in the list and in the note; to let its sender in accepts it, and nothing is said to a model."""
    await house.inbox.accept(
        [mail("invitation:!a:1", text="(invites me into a room)", context={"invitation": "!a"})]
    )
    (row,) = await house.store.inbox.quarantined_as(UNINVITED)
    with pytest.raises(IllegalMove):
        await house.store.inbox.admit(row.id)
    done = await admissions.admit_person(house.store, house.access, CAROL)
    assert (done.messages, done.invitations) == (0, 1)
    assert (await house.states())["invitation:!a:1"][0] == "ignored"


async def test_what_people_say_to_each_other_in_a_room_is_not_kept(tmp_path: Path) -> None:
    """Negative control: strangers in a room have not written to the bot. Who names it there is listed."""
    matrix = Access([Alias("matrix", "@a:hs.test")], {"matrix": ()})
    async with await SqliteQueue.open(tmp_path / "m.db", clock=ManualClock(), synchronous="normal") as store:
        inbox = ChannelInbox(
            cast("Any", SimpleNamespace(name="matrix", account="@bot:hs.test")),
            store=store,
            conversations=Conversations(matrix),
            intake=AcceptGate(),
            report=lambda *_: None,
        )
        said = {"account": "@bot:hs.test", "sender": Sender(address="@s:hs.test", verified=True)}
        await inbox.accept(
            [
                message("g", **said).model_copy(update={"audience": Audience.GROUP, "addressed": False}),
                message("m", **said).model_copy(update={"audience": Audience.GROUP}),
                message("d", **said).model_copy(update={"audience": Audience.DIRECT}),
            ]
        )
        rows = await store.inbox.rows(states=list(InboxState))
        assert {row.message.native_id: row.state.value for row in rows} == {
            "g": "ignored",
            "m": "ignored",
            "d": "quarantined",
        }
        assert [row.message.native_id for row in rows if admissions.was_refused(row, matrix)] == ["d", "m"]
        matrix = Access([Alias("matrix", "@a:hs.test")], {"matrix": ("@s:hs.test",)})
        refused = [row.message.native_id for row in rows if admissions.was_refused(row, matrix)]
        assert refused == ["d"], "what was only listed is not, once its sender may write; the other is kept"


async def test_each_way_of_being_refused_leaves_a_trace_and_robots_only_a_count(house: Harness) -> None:
    shown = (
        "unreadable_unfetchable",
        "no_single_sender",
        "over_limit",
        "not_addressed_to_us",
        "from_own_address",
    )
    robots = ("automatic_mail", "mailing_list", "bounce", "own_copy")
    for reason in (*shown, *robots):
        await house.inbox.accept([mail(reason, context={"refused": reason}, addressed=False)])
    operations = OperationContext(house.store, None, access=house.access)
    listed = (await operations.call("inbox_list", {"refused": True}))["rows"]
    assert {row["error"] for row in listed} == set(shown)
    assert all(row["sender"] == CAROL and not row["text"] for row in listed)


async def test_who_is_forgotten_is_not_let_in_any_more(house: Harness) -> None:
    """And nothing that was kept of them is there."""
    await house.inbox.accept([mail("a")])
    await admissions.admit_person(house.store, house.access, EVE)
    await admissions.admit_person(house.store, house.access, CAROL)
    await erased(house.store, "Carol@else.test")
    again = access()
    await admissions.load(house.store, again)
    assert [again.decide(mail("x", who)).allowed for who in (CAROL, EVE)] == [False, True]
    assert all(row.message.sender.address != CAROL for row in await house.store.inbox.rows())
