"""Programs that answer programs, and what is kept back: whole gateways with the demo model on a real mail server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from devservers import MailPeer, MailServer
from gateway.app import build
from gateway.errors import NotFound
from gateway.operations.operation_context import OperationContext
from gateway.settings import Settings
from gateway.store.states import InboxState, OutboxState
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from tests.daemon import email_settings
from tests.running_gateway import connected, running
from tests.servers import own_mail_server

_numbers = itertools.count()
QUIET_S = 4.0
NO_BRAKE = {
    "answers_per_hour": 0,
    "thread_answers_per_hour": 0,
}
NO_LIMITS = dict.fromkeys(("sender_per_hour", "sender_per_day"), 0)


mail_server = own_mail_server("bot", "peer", count=12)


@asynccontextmanager
async def gateway(
    server: MailServer, folder: Path, bot: str, *allow: str, owner: str = "", **email: Any
) -> AsyncIterator[Gateway]:
    """A gateway on the mailbox ``bot``, connected."""
    settings = {
        "owner": {"aliases": [owner] if owner else []},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {"email": email_settings(server, server.address(bot), "pw", *allow, **email)},
    }
    built = await build(Settings.model_validate(settings), open_home(folder))
    async with running(built):
        await connected(built)
        yield built


def own(mails: list[EmailMessage], sender: str) -> list[EmailMessage]:
    return [mail for mail in mails if sender in str(mail["From"]) and not mail.get("X-Sent-Copy")]


async def test_two_of_us_do_not_talk_to_each_other(mail_server: MailServer, tmp_path: Path) -> None:
    """A person asks one of them by the other's mailbox: one answer, which is recognised as such, and silence."""
    number = next(_numbers)
    one, two = f"bot{number}", f"peer{number}"
    first, second = mail_server.address(one), mail_server.address(two)
    peer = mail_server.peer(one)
    async with (
        gateway(mail_server, tmp_path / "one", one, second) as left,
        gateway(mail_server, tmp_path / "two", two, first) as right,
    ):
        await run_sync(lambda: peer.send(second, "Hello", "hello"))
        with anyio.fail_after(60):
            while not own(await run_sync(peer.list), second):
                await anyio.sleep(0.2)
        await anyio.sleep(QUIET_S)
        ignored = await left.store.inbox.rows(states=[InboxState.IGNORED])
        answered = (await right.store.maintenance.stats()).inbox
    assert [row.error for row in ignored] == ["automatic_mail"]
    assert answered.get("settled", 0) + answered.get("answered", 0) == 1
    assert len(own(await run_sync(peer.list), second)) == 1


class Robot:
    """Answers every mail with the same words, in the thread, and says nowhere that it is a robot."""

    def __init__(self, peer: MailPeer, bot: str) -> None:
        self.peer = peer
        self.bot = bot
        self.answered: set[str] = set()

    async def run(self) -> None:
        await run_sync(lambda: self.peer.send(self.bot, "Hello", "Thank you for your message."))
        while True:
            for mail in await run_sync(self.peer.list):
                key = str(mail["Message-ID"])
                if key not in self.answered:
                    self.answered.add(key)
                    await run_sync(self._answer, mail)
            await anyio.sleep(0.1)

    def _answer(self, mail: EmailMessage) -> None:
        self.peer.send(
            self.bot,
            f"Automatic reply: {mail['Subject']}",
            "Thank you for your message.",
            in_reply_to=str(mail["Message-ID"]),
            references=f"{mail['References'] or ''} {mail['Message-ID']}".strip(),
        )


async def robot_mails(robot: Robot, *, at_most: int) -> int:
    """How many mails the robot gets until nothing comes for a while, or there are too many."""
    count, quiet_since = 0, anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(robot.run)
        while anyio.current_time() - quiet_since < QUIET_S and count < at_most:
            if len(robot.answered) > count:
                count, quiet_since = len(robot.answered), anyio.current_time()
            await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    return count


@pytest.mark.parametrize("guard", ["limits", "brake", "neither"])
async def test_a_robot_that_does_not_say_so(mail_server: MailServer, tmp_path: Path, guard: str) -> None:
    """
    At most six answers an hour by the limits, with one word about the wait, and six by the circuit breaker alone; without both
    it goes on, which is the control.
    """
    number = next(_numbers)
    bot, peer = f"bot{number}", f"peer{number}"
    address = mail_server.address(peer)
    changes: dict[str, Any] = {
        "limits": {"sender_per_hour": 6} if guard == "limits" else NO_LIMITS,
        "circuit_breaker": {"thread_answers_per_hour": 5} if guard == "brake" else NO_BRAKE,
    }
    async with gateway(mail_server, tmp_path / "home", bot, address, **changes) as built:
        robot = Robot(mail_server.peer(peer), mail_server.address(bot))
        count = await robot_mails(robot, at_most=9)
        kept = await built.store.inbox.rows(states=[InboxState.QUARANTINED])
        waiting = await built.store.inbox.rows(states=[InboxState.READY])
    if guard == "neither":
        assert count >= 9
    else:
        assert 1 <= count <= 6 + (guard == "limits")
    assert bool(waiting) == (guard == "limits")
    assert not kept


async def test_a_brake_is_told_to_the_owner(mail_server: MailServer, tmp_path: Path) -> None:
    """The one thing that still goes out while the circuit breaker is open."""
    number = next(_numbers)
    bot, peer, boss = f"bot{number}", f"peer{number}", f"peer{next(_numbers)}"
    owner, address = mail_server.address(boss), mail_server.address(peer)
    limits: dict[str, Any] = {
        "limits": NO_LIMITS,
        "circuit_breaker": NO_BRAKE | {"thread_answers_per_hour": 1},
    }
    async with gateway(mail_server, tmp_path / "home", bot, address, owner=owner, **limits):
        person = mail_server.peer(boss)
        await run_sync(lambda: person.send(mail_server.address(bot), "Hi", "hello"))
        await run_sync(lambda: person.wait_for(lambda mail: "Re: Hi" in str(mail["Subject"])))
        robot = Robot(mail_server.peer(peer), mail_server.address(bot))
        await robot_mails(robot, at_most=9)
        alert = await run_sync(lambda: person.wait_for(lambda mail: "looks like a loop" in mail.as_string()))
    assert alert["Auto-Submitted"] == "auto-generated"
    told = alert.get_body(("plain",))
    assert told is not None and "squidbot email reset-breaker" in " ".join(told.get_content().split())

    async def running() -> dict[str, object]:
        return {}

    # A restart does not take it off, which would begin the loop anew; the operator's word does.
    async with gateway(mail_server, tmp_path / "home", bot, address, owner=owner, **limits) as built:
        status = built.supervisor.status("email").as_dict()
        waiting = await built.store.outbox.rows(states=[OutboxState.PENDING])
        desk = OperationContext(built.store, built.memory, channels=built.channels, status=running)
        released = await desk.call("email_reset_breaker", {})
        again = await desk.call("email_reset_breaker", {"channel": "email"})
        with pytest.raises(NotFound):
            await desk.call("email_reset_breaker", {"channel": "other"})
        after = built.supervisor.status("email").as_dict()
    assert status["state"] == after["state"] == "up"
    assert "the circuit breaker is open until" in status["detail"]
    assert after["detail"] == ""
    assert waiting
    assert (len(released["reset"]["email"]), again["reset"]["email"]) == (1, [])


async def test_a_mail_that_is_kept_back_and_let_in(mail_server: MailServer, tmp_path: Path) -> None:
    """Unproven, it is answered by nobody; let in by the owner's word, it is answered like any other."""
    number = next(_numbers)
    bot, peer = f"bot{number}", f"peer{number}"
    address = mail_server.address(peer)
    raw = (
        f"From: {address}\r\nTo: {mail_server.address(bot)}\r\nSubject: Forged?\r\n"
        "Message-ID: <kept@p.test>\r\n\r\nhello\r\n"
    ).encode()
    person = mail_server.peer(peer)
    async with gateway(mail_server, tmp_path / "home", bot, address) as built:
        await run_sync(lambda: mail_server.inject(mail_server.address(bot), raw, sender="x@evil.test"))
        with anyio.fail_after(60):
            while not (rows := await built.store.inbox.rows(states=[InboxState.QUARANTINED])):
                await anyio.sleep(0.1)
        await anyio.sleep(1.5)
        assert await run_sync(person.list) == []
        session = await built.store.inbox.admit(rows[0].id)
        built.dispatcher.wake(session)
        answer = await run_sync(lambda: person.wait_for(lambda mail: "Forged" in str(mail["Subject"])))
    assert rows[0].error == "sender_not_verified"
    assert rows[0].message.text == "hello"
    assert answer["In-Reply-To"] == "<kept@p.test>"
