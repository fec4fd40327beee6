"""The gateway's side of a channel: who gets in, who waits for the owner, and what is stopped."""

from __future__ import annotations

from types import SimpleNamespace

from agent_core.messages import Amendment, MessageContext, Sender, SessionKey
from gateway.routing import intake as gateway_inbox
from gateway.routing.access import Access, Alias
from gateway.routing.conversations import Conversations
from gateway.routing.intake import AcceptGate, ChannelInbox, admission
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, claim, message

ALICE = "@alice:hs.test"
BOB = "@bob:hs.test"
ACCESS = Access([Alias("matrix", ALICE)], {"matrix": (BOB,)})
UNPROVEN = {"quarantine": "sender_not_verified"}


def says(native_id, sender=ALICE, *, verified=True, **more):
    return message(native_id, sender=Sender(address=sender, verified=verified), **more)


class Bench:
    """A channel's inbox on a real store; ``!stop`` is the stop command, ``!…`` any command."""

    def __init__(self, store, wakeups, **more):
        self.store = store
        self.woken = []
        self.stopped = []
        wakeups.session.connect(lambda work: self.woken.append(work.session))
        wakeups.stopped.connect(lambda one: self.stopped.append((one.session, one.turn, one.why)))
        self.inbox = ChannelInbox(
            SimpleNamespace(name="matrix", account=BOT),
            store=store,
            conversations=Conversations(ACCESS),
            intake=AcceptGate(),
            report=lambda *_: None,
            commands=SimpleNamespace(
                is_command=lambda said: said.text.startswith("!"), is_stop=lambda said: said.text == "!stop"
            ),
            **more,
        )

    async def states(self):
        rows = await every(self.store)
        return {row.message.native_id: (row.state.value, row.error) for row in rows}


async def every(store):
    return await store.inbox.rows(states=list(InboxState))


async def on_store(tmp_path, work, **more):
    wakeups, path = Wakeups(), tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=ManualClock(), wakeups=wakeups) as store:
        await work(Bench(store, wakeups, **more))


class TestAdmission:
    def test_quarantine_is_for_those_who_would_be_let_in(self):
        """The owner's and an allowed person's unproven mail waits; of everybody else nothing is kept."""
        for sender in (ALICE, "@bob:hs.test"):
            assert admission(says("a", sender, verified=False, context=UNPROVEN), ACCESS) == (
                None,
                "sender_not_verified",
            )
        assert admission(says("a", "@eve:hs.test", verified=False, context=UNPROVEN), ACCESS) == (
            "sender_not_allowed",
            None,
        )

    def test_what_the_channel_refuses_is_refused(self):
        """A robot's mail is not kept, and without the channel's wish nothing is in quarantine."""
        refused = {"refused": "auto_submitted", **UNPROVEN}
        assert admission(says("a", verified=False, context=refused), ACCESS) == ("auto_submitted", None)
        assert admission(says("a", verified=False), ACCESS) == ("sender_not_verified", None)
        assert admission(says("a"), ACCESS) == (None, None)


class TestTaking:
    async def test_what_is_in_quarantine_wakes_nobody(self, tmp_path):
        """It is kept with its reason until it is admitted, and then it is of a verified sender."""

        async def work(bench):
            await bench.inbox.accept([says("a", verified=False, context={**UNPROVEN, "subject": "s"})])
            assert await bench.states() == {"a": ("quarantined", "sender_not_verified")}
            assert bench.woken == []
            (row,) = await bench.store.inbox.rows()
            await bench.store.inbox.admit(row.id)
            admitted = (await claim(bench.store)).head.message
            assert ACCESS.decide(admitted).allowed
            assert admitted.context.subject == "s"

        await on_store(tmp_path, work)

    async def test_a_conversation_whose_name_is_too_long_holds_nothing_up(self, tmp_path):
        """Its message is refused for good, whoever wrote it, and is none that waits for a person."""

        async def work(bench):
            long = SessionKey("matrix", "!" + "x" * 2_700)
            both = [says("a", session=long), says("b", session=long, verified=False, context=UNPROVEN)]
            await bench.inbox.accept([*both, says("c")])
            assert await bench.states() == {
                "a": ("ignored", "name_too_long"),
                "b": ("ignored", "name_too_long"),
                "c": ("ready", None),
            }
            assert max(len(str(row.message.session)) for row in await every(bench.store)) < 100

        await on_store(tmp_path, work)

    async def test_nobody_admits_or_stops_by_writing_so(self, tmp_path):
        """What only the store may say is not taken from a channel."""

        async def work(bench):
            await bench.inbox.accept(
                [says("a", context={"subject": "s", "notes": {"admitted": True, "stopped": 7}})]
            )
            assert (await claim(bench.store)).head.message.context == MessageContext(subject="s")

        await on_store(tmp_path, work)

    async def test_the_stop_command_stops_what_came_before(self, tmp_path):
        """Whoever works on it is told with session and turn, and the command says how many there were."""

        async def work(bench):
            await bench.inbox.accept([says("a"), says("b")])
            turn = await claim(bench.store)
            await bench.inbox.accept([says("c"), says("s", text="!stop"), says("d")])
            assert bench.stopped == [(ROOM, turn.id, "stopped")]
            assert (await claim(bench.store, merge=5)).head.message.context.notes.stopped == 3
            assert {name for name, (_, why) in (await bench.states()).items() if why == "stopped"} == {
                "a",
                "b",
                "c",
            }

        await on_store(tmp_path, work)

    async def test_a_guest_stops_what_he_asked_and_the_owner_everything(self, tmp_path):
        """In a room of several people nobody but the owner keeps anybody else from being answered."""

        async def work(bench):
            await bench.inbox.accept([says("a"), says("b", BOB)])
            turn = await claim(bench.store)
            await bench.inbox.accept([says("stop", BOB, text="!stop")])
            stopped = {name for name, (_, why) in (await bench.states()).items() if why == "stopped"}
            assert (stopped, bench.stopped) == ({"b"}, [])
            assert turn.head.message.native_id == "a"
            await bench.inbox.accept([says("c", BOB), says("all", text="!stop")])
            assert bench.stopped == [(ROOM, turn.id, "stopped")]
            stopped = {name for name, (_, why) in (await bench.states()).items() if why == "stopped"}
            assert {"a", "b", "c"} <= stopped

        await on_store(tmp_path, work)

    async def test_a_stranger_stops_nothing(self, tmp_path):
        """The command counts only from somebody who is allowed, and only in the place where it was said."""

        async def work(bench):
            await bench.inbox.accept([says("a")])
            await bench.inbox.accept([says("s", "@eve:hs.test", text="!stop")])
            await bench.inbox.accept([says("t", text="!stop", session=OTHER)])
            await bench.inbox.accept([says("q", verified=False, text="!stop", context=UNPROVEN)])
            assert (await bench.states())["a"] == ("ready", None)
            assert bench.stopped == []

        await on_store(tmp_path, work)

    async def test_a_command_is_a_turn_of_its_own(self, tmp_path):
        """It is not merged into the question before it."""

        async def work(bench):
            await bench.inbox.accept([says("a"), says("n", text="!new"), says("b")])
            turn = await claim(bench.store, merge=5)
            assert [row.message.native_id for row in turn.rows] == ["a"]

        await on_store(tmp_path, work)

    async def test_what_was_said_to_others_is_remembered_over_a_restart(self, tmp_path):
        """Where, and of its own sender alone; nothing of a question or of what nobody has said."""

        async def first(bench):
            await bench.inbox.accept([says("a", addressed=False), says("b")])

        async def second(bench):
            assert await bench.inbox.ignored_session("a", ALICE) == ROOM
            for native_id, sender in (("a", BOB), ("b", ALICE), ("c", ALICE)):
                assert await bench.inbox.ignored_session(native_id, sender) is None

        await on_store(tmp_path, first)
        await on_store(tmp_path, second)

    async def test_amendments_go_to_the_store_and_wake_what_follows(self, tmp_path, monkeypatch):
        """An edit is cut like a message; what stands behind a message that was taken back is woken."""

        async def work(bench):
            await bench.inbox.accept([says("a"), says("b")])
            turn = await claim(bench.store)
            await bench.store.turns.retry(turn, "away", delay_s=60, deferral=True)
            bench.woken.clear()
            edit = Amendment(kind="replace", native_id="b", sender=ALICE, text="x" * 100)
            back = Amendment(kind="withdraw", native_id="a", sender=ALICE)
            await bench.inbox.accept([], {"next_batch": "s9"}, [edit, back])
            assert bench.woken == [ROOM]
            head = (await claim(bench.store)).head.message
            assert (
                head.text == "x" * 20 + "\n\n[The rest of this message was left out: it had 100 characters.]"
            )
            assert await bench.inbox.position("next_batch") == "s9"

        monkeypatch.setattr(gateway_inbox, "MAX_TEXT", 20)
        await on_store(tmp_path, work)

    async def test_leaving_stops_the_threads_too(self, tmp_path):
        """Each running turn of the conversation is told of."""

        async def work(bench):
            thread = SessionKey("matrix", ROOM.conversation, "t")
            await bench.inbox.accept([says("a"), says("t", session=thread)])
            turns = [await claim(bench.store), await claim(bench.store, thread)]
            await bench.inbox.accept([], None, [Amendment(kind="leave", session=ROOM)])
            assert sorted(bench.stopped, key=str) == sorted(
                [(turn.session, turn.id, "left") for turn in turns], key=str
            )

        await on_store(tmp_path, work)
