"""
Questions at a real homeserver and a real mail server at once, with a daemon that is killed while they wait.

Two answers to one question from two channels: one counts, and both are told which. A server's question: in a room in
clear, in an encrypted one, and by mail.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from anyio.to_thread import run_sync

from devservers import Credentials, MailServer, MatrixPeer, Synapse
from tests.command_line import squidbot
from tests.daemon import Daemon, email_settings, matrix_settings, one_model
from tests.doubles.openai_server import Call, FakeOpenAI, Say
from tests.integration.matrix_person import Person, room_of_kind
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_approvals_by_mail import mail_server, text_of
from tests.integration.test_email_loops import own

__all__ = ["mail_server"]

HOSTILE = Path(__file__).resolve().parents[1] / "hostile_mcp.py"
NAME = re.compile(r"\b(a[0-9a-f]{6})\b")


class _Owner:
    """The owner's two ways to the bot."""

    def __init__(self, matrix: MatrixPeer, server: MailServer, number: int, bot: Credentials) -> None:
        self.matrix, self.bot = matrix, bot
        self.mail = server.peer(f"owner{number}")
        self.mail_bot = server.address(f"bot{number}")
        self.room = matrix.create_room(invite=[bot.user_id], is_direct=True)

    def heard(self) -> list[str]:
        events = self.matrix.history(self.room, limit=500)
        return [one.body for one in events if one.sender == self.bot.user_id and "body" in one.content]

    def mails(self) -> list[str]:
        return [text_of(mail) for mail in own(self.mail.list(), self.mail_bot)]


@pytest.mark.parametrize(
    ("by_matrix", "by_mail", "killed"),
    [
        ("approve", "reject", False),
        ("reject", "approve", True),
        ("approve", "reject", True),
        ("approve", "approve", True),
    ],
)
def test_of_two_answers_from_two_channels_one_counts_and_both_are_told_which(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
    by_matrix: str,
    by_mail: str,
    killed: bool,
) -> None:
    """Also if both come in at the start after a kill: what was done is what both were told, once."""
    number = {"approvereject": 0, "rejectapprove": 1, "approveapprove": 2}[by_matrix + by_mail] + 3 * killed
    bot = fresh_credentials("bot")
    owner = _Owner(fresh_user("alice"), mail_server, number, bot)
    mail_address = mail_server.address(f"owner{number}")
    settings = {
        "owner": {"aliases": [owner.matrix.user_id, mail_address]},
        "llm": {"models": {"demo": {"model": "demo/rules"}}, "pools": {"main": ["demo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "tools": {"require_approval": ["memory_write"]},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password),
            "email": email_settings(mail_server, owner.mail_bot, "pw"),
        },
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        daemon.wait_until(lambda: bot.user_id in owner.matrix.members(owner.room))
        owner.matrix.send(owner.room, "remember that the code is blue7x")
        daemon.wait_until(lambda: any(NAME.search(text) for text in owner.heard()))
        (name,) = {found[1] for text in owner.heard() if (found := NAME.search(text))}
        if killed:
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
        owner.mail.send(owner.mail_bot, "Question", f"!{by_mail} {name}")
        owner.matrix.send(owner.room, f"!{by_matrix} {name}")
        if killed:
            daemon.up()
        daemon.wait_until(lambda: any(name in text for text in owner.mails()), within_s=60)
        daemon.wait_until(lambda: len(owner.heard()) >= 3, within_s=60)  # question, verdict, answer
        daemon.wait_until(lambda: daemon.work("inbox", "ready", "running") == 0)
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending") == 0)
        (by_post,) = [text.replace("`", "") for text in owner.mails() if name in text]
        (in_room,) = [text.replace("`", "") for text in owner.heard() if text.startswith((name, f"`{name}"))]
        documents = "\n".join(path.read_text() for path in daemon.home.rglob("*.md") if path.is_file())
        is_done = documents.count("blue7x") == 1
        for told in (by_post, in_room):
            assert re.search(rf"{name} (is|was) {'approved' if is_done else 'rejected'}", told), told
        if by_matrix == by_mail:
            assert is_done
        assert sum("I will remember" in text for text in owner.heard()) == is_done
        daemon.terminate()
        assert daemon.ended() == 0


class _Caller(FakeOpenAI):
    """A model that calls the tool that the question names, and says what came of it."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        last = body["messages"][-1]
        question = str(next(each for each in reversed(body["messages"]) if each["role"] == "user")["content"])
        wanted = next((word for word in question.split() if "__" in word), "")
        said = str(last["content"])
        if not wanted:
            reply = Say("good morning")
        elif last["role"] == "tool" and "It is loaded now" not in said:
            reply = Say(f"so: {said}")
        else:
            reply = Say(calls=[Call(wanted, '{"text": "hello"}', id=f"c{len(body['messages'])}")])
        return await self._give(reply, request, body)


def _asking(api_base: str, calls: Path, **channels: Any) -> dict[str, Any]:
    server = {"command": sys.executable, "args": [str(HOSTILE), "elicits", str(calls)]}
    return {
        "llm": one_model("m", api_base),
        "agents": {"heartbeat": {"enabled": False}},
        "mcp": {"servers": {"bad": {**server, "effects": {"echo": "write_workspace"}, "trust": "own"}}},
        "channels": channels,
    }


def _review(daemon: Daemon) -> None:
    """Let the owner read and approve what the server offers."""
    for what in ("tools", "approve"):
        done = squidbot(daemon.home, "mcp", what, "bad")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_servers_question_in_a_room_over_a_kill(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    tmp_path: Path,
    encrypted: bool,
) -> None:
    """The call that dies is unknown and not repeated, its question is closed; the next one is answered in a reply."""
    pytest.importorskip("mcp")
    nia, bot = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia"), fresh_credentials("bot")
    calls = tmp_path / "calls"
    async with _Caller() as model:
        matrix = matrix_settings(synapse, bot.user_id, bot.password)
        settings = {**_asking(model.api_base, calls, matrix=matrix), "owner": {"aliases": [nia.user_id]}}
        with Daemon(tmp_path / "home", settings) as daemon:
            await run_sync(daemon.up)
            await run_sync(daemon.wait_until, lambda: "mcp.connected" in daemon.log())
            await run_sync(_review, daemon)
            room = await room_of_kind(nia, bot.user_id, "11", encrypted=encrypted)
            person = Person(nia, room, bot.user_id, encrypted=encrypted)

            async def until(wanted: str, count: int = 1) -> tuple[str, str]:
                """What the bot has said with these words so often, with its event."""
                deadline = time.monotonic() + 60
                while True:
                    heard = await person.heard()
                    found = [
                        (text, event)
                        for (_, _, text), event in zip(heard, person.events, strict=True)
                        if wanted in text
                    ]
                    if len(found) >= count:
                        return found[-1]
                    if time.monotonic() > deadline:
                        pytest.fail(f"{wanted!r}: {[text for _, _, text in heard]} {daemon.log()[-2000:]}")
                    await anyio.sleep(0.2)

            await person.say("please bad__echo")
            question, first = await until("its words, not mine")
            name = NAME.findall(question)[0]
            await run_sync(daemon.kill)
            await person.say("Rome", **{"m.relates_to": {"m.in_reply_to": {"event_id": first}}})
            await run_sync(daemon.up)
            await until("outcome of this call is unknown")
            assert calls.read_text() == "hello\n"
            await person.say(f"!answer {name} Rome")
            await until(f"`{name}` is closed", 2)
            await person.say("!trust")  # the late reply has quoted what no prompt holds
            await until("counts as your own words")
            await person.say("please bad__echo")
            _, second = await until("its words, not mine", 2)
            await person.say("Berlin", **{"m.relates_to": {"m.in_reply_to": {"event_id": second}}})
            said, _ = await until('"action"')
            assert "Berlin" in said
            assert calls.read_text() == "hello\nhello\n"
            heard = await person.heard()
            assert {kind for kind, _, _ in heard} == {person.wire}
            daemon.terminate()
            assert await run_sync(daemon.ended) == 0
    nia.close()


async def test_a_servers_question_by_mail_over_a_kill(mail_server: MailServer, tmp_path: Path) -> None:
    """What is mailed while nobody runs answers a call that is gone: it is passed on to nobody, and said so."""
    pytest.importorskip("mcp")
    calls, bot, owner = tmp_path / "calls", mail_server.address("bot8"), mail_server.peer("owner8")

    def mails() -> list[EmailMessage]:
        return own(owner.list(), bot)

    def reply(to: EmailMessage, text: str) -> None:
        chain = f"{to['References'] or ''} {to['Message-ID']}".strip()
        owner.send(bot, str(to["Subject"]), text, in_reply_to=str(to["Message-ID"]), references=chain)

    def until(wanted: str, count: int = 1) -> EmailMessage:
        deadline = time.monotonic() + 60
        while len(found := [mail for mail in mails() if wanted in text_of(mail)]) < count:
            if time.monotonic() > deadline:
                pytest.fail(f"{wanted!r}: {[text_of(mail) for mail in mails()]} {daemon.log()[-2000:]}")
            time.sleep(0.3)
        return found[-1]

    async with _Caller() as model:
        email = email_settings(mail_server, bot, "pw")
        settings = {
            **_asking(model.api_base, calls, email=email),
            "owner": {"aliases": [mail_server.address("owner8")]},
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            await run_sync(daemon.up)
            await run_sync(daemon.wait_until, lambda: "mcp.connected" in daemon.log())
            await run_sync(_review, daemon)
            await run_sync(partial(owner.send, bot, "A wish", "please bad__echo"))
            question = await run_sync(until, "its words, not mine")
            await run_sync(daemon.kill)
            await run_sync(reply, question, "Rome")
            await run_sync(daemon.up)
            await run_sync(until, "outcome of this call is unknown")
            await run_sync(partial(owner.send, bot, "Another wish", "please bad__echo"))
            again = await run_sync(until, "its words, not mine", 2)
            await run_sync(reply, again, "Berlin")
            said = text_of(await run_sync(until, "action"))
            assert "Berlin" in said
            assert calls.read_text() == "hello\nhello\n"
            everything = "\n".join(map(text_of, await run_sync(mails)))
            assert everything.count("is closed: the call of") == 1
            daemon.terminate()
            assert await run_sync(daemon.ended) == 0
