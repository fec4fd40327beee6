"""A model that is away for long: who is notified, where and how often. Turns are run by hand, so no time passes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ModelRateLimited, ModelUnavailable
from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.stores import Pending
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from gateway.turns.turn_kinds import TurnPolicy
from tests.clock import ManualClock
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.queue import wrapping

HOUR = 3600.0
CHAT, MAIL = SessionKey("matrix", "!room"), SessionKey("email", "thread-1")


class Model(StreamingModel):
    """Answers, or is away."""

    away: Exception | None = ModelUnavailable("connection refused")

    async def answer(self, messages, tools):
        if self.away is not None:
            raise self.away
        yield "here I am"


class Desk:
    """A gateway whose turns are run by hand, one after the other, on a clock that is moved."""

    def __init__(self, built: Gateway, clock: ManualClock) -> None:
        self.built, self.clock, self.count = built, clock, 0

    async def say(self, session: SessionKey, text: str, **more: Any) -> None:
        self.count += 1
        given = {
            "channel": session.channel,
            "account": f"{session.channel}-bot",
            "native_id": f"${text}",
            "session": session,
            "sender": Sender(address="@bob:hs.test", verified=True),
            "text": text,
            "received_at": self.clock.now(),
            "audience": Audience.DIRECT,
        }
        pending = Pending(InboundMessage(**{**given, **more}))
        await self.built.store.inbox.accept(session.channel, given["account"], [pending], {})

    async def work(self, session: SessionKey, *, for_s: float) -> None:
        """Run what is due, and move the clock to what is due next, for so long."""
        left = for_s
        while True:
            await self.built.handler.run_session(session)
            due_s = await self.built.store.turns.due_in(session)
            if due_s is None or due_s > left:
                self.clock.advance(left)
                return
            step_s = max(due_s, 0.001)  # the clock counts microseconds
            self.clock.advance(step_s)
            left -= step_s

    async def said(self, session: SessionKey) -> list[str]:
        rows = await self.built.store.outbox.rows()
        return [row.message.kind.value for row in reversed(rows) if row.message.session == session]

    async def texts(self) -> list[str]:
        return [row.message.text for row in reversed(await self.built.store.outbox.rows())]


@asynccontextmanager
async def desk(
    root: Path, model: Model, clock: ManualClock, *, outage_budget_s: float = 24 * HOUR, **more: Any
) -> AsyncIterator[Desk]:
    """A desk on ``root``, recovered from what happened before; closed at the end without draining."""
    built = await build(
        Settings.model_validate({}),
        open_home(root),
        Overrides(
            clock=clock,
            channels={
                "matrix": (LoopbackChannel(LoopbackServer(), name="matrix"), "merge"),
                "email": (LoopbackChannel(LoopbackServer(), name="email", email_style=True), "merge"),
            },
            allow_from={"matrix": ("*",), "email": ("*",)},
            models={"demo": model},
            policy=TurnPolicy(outage_budget_s=outage_budget_s),
            **more,
        ),
    )
    try:
        await built._recover()
        yield Desk(built, clock)
    finally:
        await built._close()


@pytest.fixture(autouse=True)
def without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance may make the next pause a long one in any outage."""
    monkeypatch.setattr(random, "random", lambda: 0.5)


async def test_it_is_said_once_in_the_chat_and_answered_afterwards(tmp_path: Path) -> None:
    """Two messages of one conversation and an hour have one notice, also over a restart."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock) as at:
        await at.say(CHAT, "hello")
        await at.work(CHAT, for_s=60)
        (text,) = await at.texts()
        assert text == (
            "The language model cannot be reached at the moment. Your message is kept and will be answered "
            "when that is over; I keep trying for 1440 minutes."
        )
        await at.say(CHAT, "and another thing")
        await at.work(CHAT, for_s=HOUR)
    async with desk(tmp_path, model, clock) as at:
        await at.work(CHAT, for_s=HOUR)
        assert await at.said(CHAT) == ["notice"]
        model.away = None
        await at.work(CHAT, for_s=HOUR)
        assert await at.said(CHAT) == ["notice", "reply", "reply"]


async def test_a_second_outage_is_said_again(tmp_path: Path) -> None:
    """The next day's question is another one."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock) as at:
        for day in range(2):
            for place in (CHAT, MAIL):
                model.away = ModelUnavailable("connection refused")
                await at.say(place, f"hello {day}")
                await at.work(place, for_s=HOUR)
                model.away = None
                await at.work(place, for_s=12 * HOUR)
        assert await at.said(CHAT) == ["notice", "reply"] * 2
        assert await at.said(MAIL) == ["notice", "reply"] * 2


@pytest.mark.parametrize(("session", "short_s"), [(CHAT, 3.0), (MAIL, 100.0)])
async def test_a_short_outage_is_not_worth_a_word(
    session: SessionKey, short_s: float, tmp_path: Path
) -> None:
    """Control: seconds in a chat, minutes by mail."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock) as at:
        await at.say(session, "hello")
        await at.work(session, for_s=short_s)
        model.away = None
        await at.work(session, for_s=HOUR)
        assert await at.said(session) == ["reply"]


async def test_a_mail_says_it_after_minutes_and_once(tmp_path: Path) -> None:
    """In the conversation that asked, and nowhere else."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock) as at:
        await at.say(MAIL, "hello")
        await at.work(MAIL, for_s=100)
        assert await at.said(MAIL) == []
        await at.say(MAIL, "are you there?")
        await at.work(MAIL, for_s=HOUR)
        assert len(await at.texts()) == 1
        assert await at.said(MAIL) == ["notice"]


async def test_two_mails_in_a_long_outage_have_one_notice(tmp_path: Path) -> None:
    """The second waits for the first, and its own wait begins when that is given up; in a chat that is said."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock, outage_budget_s=HOUR) as at:
        for place in (MAIL, CHAT):
            await at.say(place, f"hello {place}")
            await at.work(place, for_s=60)
            await at.say(place, f"are you there? {place}")
            await at.work(place, for_s=3 * HOUR)
        assert await at.said(MAIL) == ["notice", "apology", "apology"]
        assert await at.said(CHAT) == ["notice", "apology"] * 2


async def test_a_server_that_names_a_long_wait_is_reported_at_once(tmp_path: Path) -> None:
    """In its own words, and without their promise."""
    model, clock = Model(), ManualClock()
    model.away = ModelRateLimited("slow down", retry_after_s=900.0)
    async with desk(tmp_path, model, clock) as at:
        await at.say(CHAT, "hello")
        await at.work(CHAT, for_s=1)
        (text,) = await at.texts()
        assert text.startswith("The language model gets more requests than it allows. Your message is kept")


async def test_who_asked_nothing_is_not_notified(tmp_path: Path) -> None:
    """A check-in, and talk in a room that the bot may leave alone; the control is the question beside it."""
    model, clock = Model(), ManualClock()
    async with desk(tmp_path, model, clock) as at:
        talk = SessionKey("matrix", "!talk")
        await at.say(talk, "what a day", audience=Audience.GROUP, context={"not_named": True})
        await at.work(talk, for_s=HOUR)
        tick = SessionKey("matrix", "!tick")
        await at.say(tick, "check", kind="tick")
        await at.work(tick, for_s=HOUR)
        assert await at.texts() == []
        await at.say(talk, "bot, what a day", audience=Audience.GROUP)
        await at.work(talk, for_s=HOUR)
        assert await at.said(talk) == []  # it waits with the talk before it, and the first of them decides


async def test_an_hour_without_a_model_still_ends_in_an_apology(tmp_path: Path) -> None:
    """Notice first, apology at the end: nothing else."""
    async with desk(tmp_path, Model(), ManualClock(), outage_budget_s=HOUR) as at:
        await at.say(CHAT, "hello")
        await at.work(CHAT, for_s=2 * HOUR)
        assert await at.said(CHAT) == ["notice", "apology"]
        assert (await at.texts())[0].endswith("I keep trying for an hour.")


class Killed(BaseException):
    """The process ends here."""


class DiesAtDeferral:
    """A store whose process ends between the notice and the deferral."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def retry(self, turn: Any, *details: Any, delay_s: float, **more: Any) -> None:
        if turn.first_deferred_s + delay_s >= 20:
            raise Killed
        await self.inner.retry(turn, *details, delay_s=delay_s, **more)


async def test_a_kill_behind_the_notice_doubles_nothing(tmp_path: Path) -> None:
    """The next process tries the turn again, and the notice is there already."""
    model, clock = Model(), ManualClock()
    with pytest.raises(Killed):
        async with desk(tmp_path, model, clock, wrap_queue=wrapping(turns=DiesAtDeferral)) as at:
            await at.say(CHAT, "hello")
            await at.work(CHAT, for_s=HOUR)
    async with desk(tmp_path, model, clock) as at:
        assert await at.said(CHAT) == ["notice"]
        await at.work(CHAT, for_s=HOUR)
        assert await at.said(CHAT) == ["notice"]


async def test_without_a_name_it_would_be_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a notice that is posted as any other message."""
    monkeypatch.setattr("gateway.store.sql.outbox_store.claim_once", lambda *_: True)
    model, clock = Model(), ManualClock()
    monkeypatch.setattr("gateway.store.sql.outbox_store.origin_of_post", lambda once: f"{once} {clock.now()}")
    async with desk(tmp_path, model, clock) as at:
        await at.say(CHAT, "hello")
        await at.work(CHAT, for_s=HOUR)
        assert len(await at.said(CHAT)) > 1
