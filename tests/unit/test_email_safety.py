"""The brake, the patience after refused logins, and what the owner is told of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, OutboundKind, OutboundMessage, Sender, SessionKey
from channels.base import ChannelAuthFailed, ChannelUnavailable, LinkState
from channels.email.brake import Brake
from channels.email.config import AnswerBrake, AnswerLimits, EmailConfig
from channels.email.limits import AnswerLimiter
from channels.email.safety import LOOK_AGAIN_S, LoginPatience, Safety
from channels.email.threads import message_id_of
from channels.loopback import LoopbackChannel, LoopbackServer
from gateway.access import Role
from gateway.owner_notes import OwnerNotes
from gateway.supervisor import ChannelStatus
from gateway.target import OwnerTarget
from gateway.work.port import OutboxRow, Pending
from gateway.work.sqlite import SqliteWorkStore
from gateway.work.states import OutboxState
from tests.clock import ManualClock

THREAD = SessionKey("email", "thread-" + "a" * 24, "alice@mail.test")
OTHER = SessionKey("email", "thread-" + "b" * 24, "bob@mail.test")
NONE = {"answers_per_hour": 0, "thread_answers_per_hour": 0, "identical_answers": 0, "bounces_per_hour": 0}


def brake(**limits: Any) -> Brake:
    return Brake(AnswerBrake.model_validate(NONE | {"closed_minutes": 60} | limits))


def send(it: Brake, number: int, now: float, *, thread: str = "t", text: str = "") -> bool:
    if it.may_send(thread, text or f"text {number}", now) is not None:
        return False
    it.sent(thread, text or f"text {number}", now)
    return True


class TestBrake:
    def test_nothing_is_stopped_without_limits(self) -> None:
        """The control: a thousand answers a minute."""
        it = brake()
        assert all(send(it, number, now=number / 20, text="same") for number in range(1000))

    def test_the_same_text_again_and_again(self) -> None:
        """The third in one thread is the last; white space makes no difference, another thread none either."""
        it = brake(identical_answers=3)
        assert [send(it, n, float(n), text=f"Hello{' ' * (n + 1)}there") for n in range(4)] == [True] * 3 + [
            False
        ]
        assert send(it, 9, 9.0, thread="other", text="Hello there")
        assert not send(it, 9, 10.0, text="something else"), "the thread is stopped"
        assert send(it, 9, 4000.0, text="Hello there"), "it comes off by itself"

    def test_one_thread(self) -> None:
        """Beyond so many answers an hour one thread rests, and the others do not."""
        it = brake(thread_answers_per_hour=5)
        assert [send(it, n, float(n)) for n in range(6)] == [True] * 5 + [False]
        assert send(it, 7, 7.0, thread="other")

    def test_all_of_it(self) -> None:
        """Beyond so many in all nobody is answered, for the time that was set and no longer."""
        it = brake(answers_per_hour=10)
        assert [send(it, n, float(n), thread=f"t{n}") for n in range(11)] == [True] * 10 + [False]
        assert not send(it, 12, 3000.0, thread="new")
        assert send(it, 13, 3620.0, thread="new")

    def test_slow_is_no_loop(self) -> None:
        """As many answers over many hours are none too many."""
        it = brake(answers_per_hour=10, thread_answers_per_hour=5, identical_answers=3)
        assert all(send(it, n, n * 1300.0, text="Done.") for n in range(100))

    def test_mails_that_come_back(self) -> None:
        """The fifth within an hour pulls it, once."""
        it = brake(bounces_per_hour=5)
        pulled = [it.bounced(float(n)) for n in range(7)]
        assert [found is not None for found in pulled] == [False] * 4 + [True, False, False]
        assert it.pulled("any", 10.0) is not None

    def test_it_is_told_once(self) -> None:
        """Only the moment at which it was pulled is new."""
        it = brake(answers_per_hour=1)
        send(it, 1, 0.0)
        first = it.may_send("t", "x", 1.0)
        again = it.may_send("t", "x", 2.0)
        assert first is not None
        assert again is not None
        assert (it.is_new(first), it.is_new(again)) == (True, False)

    def test_it_outlives_a_restart(self) -> None:
        """What was counted and what was pulled go on in a process with another clock, as long as they would have."""
        it = brake(thread_answers_per_hour=5, bounces_per_hour=3)
        assert [send(it, n, float(n), thread="loop") for n in range(6)] == [True] * 5 + [False]
        assert all(send(it, n, float(n)) for n in range(4))
        it.bounced(3.0)
        kept = it.dump(10.0, 1_000_010.0)
        assert not it.changed

        after = brake(thread_answers_per_hour=5, bounces_per_hour=3)
        assert after.load(kept, 500.0, 1_000_110.0)
        (pulled,) = after.all_pulled(500.0)
        assert (pulled.thread, round(pulled.until - 500.0)) == ("loop", 3600 - 105)
        assert not send(after, 9, 501.0, thread="loop")
        assert not after.is_new(pulled), "the owner has heard of it"
        assert [send(after, n, 502.0) for n in (5, 6)] == [True, False], "the fifth and the sixth of an hour"
        assert after.bounced(503.0) is None
        assert after.bounced(504.0) is not None

    def test_a_forgetful_restart_is_caught(self) -> None:
        """The control: a process that takes nothing over answers into the loop again."""
        it = brake(thread_answers_per_hour=5)
        assert [send(it, n, float(n)) for n in range(6)][-1] is False
        assert send(brake(thread_answers_per_hour=5), 7, 7.0)

    def test_clocks_that_are_set(self) -> None:
        """Forward it ends; back it lasts no longer than it is set to."""
        it = brake(answers_per_hour=1)
        send(it, 1, 0.0)
        assert it.may_send("t", "x", 1.0) is not None
        kept = it.dump(1.0, 1_000_000.0)
        for wall, pulled in ((1_003_700.0, False), (0.0, True)):
            after = brake(answers_per_hour=1)
            assert after.load(kept, 0.0, wall)
            assert (after.pulled("t", 10.0) is not None) == pulled
            assert after.pulled("t", 3601.0) is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"pulled": [[1]], "sent": [], "bounced": []}', "\0"])
    def test_damaged_is_like_none(self, text: str) -> None:
        """Nothing is taken of it, and said so."""
        it = brake(answers_per_hour=1)
        assert not it.load(text, 0.0, 0.0)
        assert send(it, 1, 0.0)

    def test_letting_go(self) -> None:
        """What was pulled is told, and answers go out again, as many as after any pause."""
        it = brake(thread_answers_per_hour=2)
        assert [send(it, n, float(n)) for n in range(3)] == [True, True, False]
        assert [one.thread for one in it.let_go(3.0)] == ["t"]
        assert it.let_go(3.0) == []
        assert [send(it, n, 4.0 + n) for n in range(3)] == [True, True, False]


class TestPatience:
    def test_a_refused_login_is_not_repeated_for_minutes(self) -> None:
        """Five, ten, twenty … at most two hours; an accepted one makes it forget."""
        clock = ManualClock()
        patience = LoginPatience(clock.monotonic)
        pauses = []
        for _ in range(8):
            patience.check()
            error = ChannelAuthFailed("no")
            patience.refused(error)
            pauses.append(error.retry_after_s)
            with pytest.raises(ChannelUnavailable) as caught:
                patience.check()
            assert caught.value.retry_after_s == error.retry_after_s
            clock.advance(error.retry_after_s or 0)
        assert pauses == [300, 600, 1200, 2400, 4800, 7200, 7200, 7200]
        patience.check()
        patience.accepted()
        patience.refused(again := ChannelAuthFailed("no"))
        assert again.retry_after_s == 300


def answer(
    text: str = "Hello", *, session: SessionKey = THREAD, key: str = "k", **more: Any
) -> OutboundMessage:
    return OutboundMessage(
        id=key,
        channel="email",
        account="bot@mail.test",
        session=session,
        text=text,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **more,
    )


class TestSafety:
    @staticmethod
    def make(tmp_path: Path, **limits: Any) -> tuple[Safety, ManualClock, list[str]]:
        config = EmailConfig.model_validate(
            {
                "address": "bot@mail.test",
                "username": "bot",
                "password": "x",
                "imap": {"host": "h"},
                "smtp": {"host": "h"},
                "sender_verification": "off",
                "brake": NONE | limits,
            }
        )
        clock, told = ManualClock(), []
        limiter = AnswerLimiter(AnswerLimits())
        safety = Safety(
            "email", config, limiter, tmp_path / "l", clock=clock, alert=lambda _, text: told.append(text)
        )
        return safety, clock, told

    def test_a_loop_is_stopped_and_told_once(self, tmp_path: Path) -> None:
        """The answer waits as long as the brake is pulled; alerts to the owner go out all the same."""
        safety, clock, told = self.make(tmp_path, identical_answers=2)
        for _ in range(2):
            safety.before_sending(answer())
            safety.sent(answer(), "<id>")
        for _ in range(3):
            with pytest.raises(ChannelUnavailable, match="brake") as caught:
                safety.before_sending(answer())
            assert caught.value.retry_after_s == LOOK_AGAIN_S
            clock.advance(60)
        assert safety.is_braked(str(THREAD))
        assert not safety.is_braked(str(OTHER))
        safety.before_sending(answer(kind=OutboundKind.ALERT))
        assert len(told) == 1
        assert "looks like a loop" in told[0]
        clock.advance(3600)
        safety.before_sending(answer())

    def test_what_comes_at_a_time_is_no_loop(self, tmp_path: Path) -> None:
        """A reminder every quarter of an hour is the same text again and again; answers stop, it does not."""
        safety, _, told = self.make(tmp_path, identical_answers=2, answers_per_hour=3)
        reminder = answer("Stretch", context={"message_id": "<m@x>", "job": "abcde"})
        for _ in range(9):
            safety.before_sending(reminder)
            safety.sent(reminder, "<id>")
        safety.before_sending(answer())
        assert told == []
        assert not safety.is_braked(str(THREAD))

    async def test_a_pulled_brake_is_kept_at_once(self, tmp_path: Path) -> None:
        """Whatever kills the process next: the next one knows, says so in the status, and a person can end it."""
        safety, clock, told = self.make(tmp_path, identical_answers=1)
        await safety.load()
        safety.sent(answer(), "<id>")
        await safety.save()
        assert not (tmp_path / "answer-brake.json").exists(), "counts are kept every few seconds"
        assert safety.told() == ""
        with pytest.raises(ChannelUnavailable):
            safety.before_sending(answer())
        await safety.save()

        after, later, told_again = self.make(tmp_path, identical_answers=1)
        await after.load()
        assert after.is_braked(str(THREAD))
        assert "squidbot email release" in after.told()
        assert "the same answer was given 1 times" in after.told()
        with pytest.raises(ChannelUnavailable):
            after.before_sending(answer("another"))
        assert (len(told), told_again) == (1, [])
        assert len(await after.let_go()) == 1
        assert after.told() == ""
        after.before_sending(answer())
        third, _, _ = self.make(tmp_path, identical_answers=1)
        await third.load()
        assert not third.is_braked(str(THREAD))
        later.advance(10)
        clock.advance(10)

    async def test_counts_are_kept_in_the_end(self, tmp_path: Path) -> None:
        """An orderly stop loses none of them; in between a file is written every few seconds at most."""
        safety, clock, _ = self.make(tmp_path, identical_answers=2)
        safety.sent(answer(), "<id>")
        await safety.save(now=True)
        first = (tmp_path / "answer-brake.json").read_text()
        safety.sent(answer("other"), "<id2>")
        await safety.save()
        assert (tmp_path / "answer-brake.json").read_text() == first
        clock.advance(6)
        await safety.save()
        assert (tmp_path / "answer-brake.json").read_text() != first

    def test_only_our_own_mails_coming_back_count(self, tmp_path: Path) -> None:
        """A forged report cannot pull the brake."""
        safety, _clock, told = self.make(tmp_path, bounces_per_hour=2)
        ours = message_id_of("k", THREAD, account="bot@mail.test")
        never_sent = message_id_of("other", THREAD, account="bot@mail.test")
        safety.sent(answer(), ours)
        for _ in range(5):
            safety.bounced(f"Message-ID: {never_sent}".encode())
            safety.bounced(b"In-Reply-To: <something@else>")
        assert told == []
        another = message_id_of("k2", THREAD, account="bot@mail.test")
        safety.sent(answer(), another)
        for _ in range(5):
            safety.bounced(f"Original-Message-ID: {ours}".encode())
        assert told == [], "one mail comes back once, however often somebody says so"
        safety.bounced(f"Original-Message-ID: {another}".encode())
        assert len(told) == 1


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteWorkStore]:
    made = await SqliteWorkStore.open(tmp_path / "gateway.db", clock=ManualClock(), synchronous="normal")
    yield made
    await made.aclose()


def inbound(number: int, **more: Any) -> InboundMessage:
    values: dict[str, Any] = {
        "channel": "email",
        "account": "bot@mail.test",
        "native_id": f"n{number}",
        "session": THREAD,
        "sender": Sender(address="alice@mail.test", verified=False),
        "text": f"pay {number}",
        "received_at": datetime(2026, 1, 1, tzinfo=UTC),
        "context": {"quarantine": "sender_not_verified", "subject": f"Bill `{number}`\n**now**"},
    }
    return InboundMessage(**values | more)


class Owner:
    """`OwnerNotes` on a real store, and whom they reach."""

    def __init__(self, store: SqliteWorkStore) -> None:
        self.store = store
        self.clock = ManualClock()
        self.target = OwnerTarget(
            store, channels={"matrix": LoopbackChannel(LoopbackServer(), name="matrix")}
        )
        self.notes = OwnerNotes(
            store=store,
            plans=store,
            target=self.target,
            reaches=lambda name: name == "matrix",
            clock=self.clock,
            on_outbox=lambda _: None,
            look_every_s=0.01,
        )

    async def learn(self) -> None:
        room = SessionKey("matrix", "dm-@ann:hs.test")
        said = inbound(
            0,
            channel="matrix",
            session=room,
            sender=Sender(address="@ann:hs.test", verified=True),
            audience=Audience.DIRECT,
        )
        await self.target.learn(said, Role.OWNER)

    async def keep(self, *numbers: int) -> None:
        batch = [Pending(inbound(number), quarantine="sender_not_verified") for number in numbers]
        await self.store.accept("email", "bot@mail.test", batch, {})

    async def told(self) -> list[OutboxRow]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.notes.run)
            await anyio.sleep(0.15)
            with anyio.fail_after(10):
                while self.notes._alerts:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        return list(reversed(await self.store.outbox(states=[OutboxState.PENDING])))


class TestOwnerNotes:
    async def test_quarantine_is_told_once_a_day(self, store: SqliteWorkStore) -> None:
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
        assert "2 messages are kept back" in first.message.text
        assert "`Bill '2' **now**`" in first.message.text
        assert "3 messages are kept back" in second.message.text

    async def test_without_a_place_to_tell_it_waits(self, store: SqliteWorkStore) -> None:
        """The owner has never written: nothing is lost, and it is told as soon as he has."""
        owner = Owner(store)
        await owner.keep(1)
        assert await owner.told() == []
        await owner.learn()
        assert len(await owner.told()) == 1

    async def test_a_flood_is_one_message_of_bounded_length(self, store: SqliteWorkStore) -> None:
        """Two hundred forged mails ring once."""
        owner = Owner(store)
        await owner.learn()
        await owner.keep(*range(1, 201))
        (row,) = await owner.told()
        assert "and 180 more" in row.message.text
        assert len(row.message.text) < 4_000

    async def test_alerts(self, store: SqliteWorkStore) -> None:
        """At once, what is there together is one message, and the same thing is told once an hour."""
        owner = Owner(store)
        await owner.learn()
        for _ in range(3):
            owner.notes.alert("brake", "stopped")
        status = ChannelStatus(
            "email", "bot@mail.test", LinkState.FAILED, owner.clock.now(), "wrong password"
        )
        owner.notes.channel_changed(status)
        (row,) = await owner.told()
        assert row.message.kind is OutboundKind.ALERT
        assert row.message.text.count("stopped") == 1
        assert "The channel email needs you: wrong password" in row.message.text
        owner.notes.alert("brake", "stopped")
        assert len(await owner.told()) == 1
        owner.clock.advance(3601)
        owner.notes.alert("brake", "stopped")
        assert len(await owner.told()) == 2
