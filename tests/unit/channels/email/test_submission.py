"""Submission against a scripted SMTP server: every step can fail, and each failure means one thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from channels.base import (
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
)
from channels.email.compose.outbound_mail import Envelope
from channels.email.config import EmailConfig
from channels.email.smtp.submission import MailTooLarge, Submission, SubmitTiming

pytestmark = pytest.mark.virtual_time
ENVELOPE = Envelope("bot@mail.test", "alice@mail.test", ("bot+sent@mail.test", "bot@mail.test"))
SILENCE = "…"
HANG_UP = "✂"


class Post:
    """What the server answers, by the beginning of a command, and what it has taken."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.commands: list[str] = []
        self.taken: list[bytes] = []
        self.uncertain_before: list[str] = []

    async def uncertain(self) -> None:
        self.uncertain_before.append(self.commands[-1])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._say(writer, self.answers.get("greeting", "220 hello"))
            while line := (await reader.readline()).decode().rstrip("\r\n"):
                self.commands.append(line)
                await self._command(line, reader, writer)
        except (ConnectionError, EOFError):
            pass
        finally:
            writer.transport.abort()

    async def _command(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scripted = [
            answer
            for beginning, answer in self.answers.items()
            if beginning != "end" and line.upper().startswith(beginning.replace("_", " ").upper())
        ]
        if scripted:
            await self._say(writer, scripted[0])
        elif line.startswith("EHLO"):
            await self._say(writer, "250-mail.test\r\n250-SIZE 100000\r\n250 AUTH PLAIN")
        elif line == "DATA":
            await self._say(writer, "354 go on")
            self.taken.append(await reader.readuntil(b"\r\n.\r\n"))
            await self._say(writer, self.answers.get("end", "250 taken"))
        else:
            await self._say(writer, "235 ok" if line.startswith("AUTH") else "250 ok")

    async def _say(self, writer: asyncio.StreamWriter, answer: str) -> None:
        if answer == SILENCE:
            await asyncio.sleep(100_000)
        if answer == HANG_UP:
            raise EOFError
        writer.write(answer.encode() + b"\r\n")
        await writer.drain()


@asynccontextmanager
async def submitter(post: Post, large_bytes: int = 256_000) -> AsyncIterator[Submission]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await post.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Submission(
            EmailConfig.model_validate(
                {
                    "address": "bot@mail.test",
                    "username": "bot",
                    "password": "pw-secret",
                    "imap": {"host": "127.0.0.1", "port": 1, "security": "none"},
                    "smtp": {"host": "127.0.0.1", "port": port, "security": "none"},
                    "sender_verification": "off",
                }
            ),
            SubmitTiming(large_bytes=large_bytes),
        )
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


async def submit(
    post: Post,
    envelope: Envelope = ENVELOPE,
    raw: bytes = b"Subject: x\r\n\r\n.dot\r\n",
    large_bytes: int = 256_000,
) -> None:
    async with submitter(post, large_bytes) as door:
        await door.submit(envelope, raw, context=None, uncertain=post.uncertain)


async def test_the_steps_of_a_submission() -> None:
    """Sender, person, one copy, the point of no return, the mail; the name of this machine stays here."""
    post = Post()
    await submit(post)

    assert post.commands[0] == "EHLO mail.test"
    assert post.commands[2:6] == [
        "MAIL FROM:<bot@mail.test>",
        "RCPT TO:<alice@mail.test>",
        "RCPT TO:<bot+sent@mail.test>",
        "DATA",
    ]
    assert post.uncertain_before == ["RCPT TO:<bot+sent@mail.test>"]
    assert post.taken == [b"Subject: x\r\n\r\n..dot\r\n.\r\n"]


@pytest.mark.parametrize(
    ("answers", "error", "marked"),
    [
        ({"greeting": SILENCE}, ChannelUnavailable, 0),
        ({"greeting": HANG_UP}, ChannelUnavailable, 0),
        ({"greeting": "421 too busy"}, ChannelUnavailable, 0),
        ({"greeting": "554 go away"}, ChannelMisconfigured, 0),
        ({"greeting": "rubbish"}, ChannelUnavailable, 0),
        ({"EHLO": "250 mail.test"}, ChannelMisconfigured, 0),
        ({"AUTH": "535 no"}, ChannelAuthFailed, 0),
        ({"AUTH": "454 later"}, ChannelUnavailable, 0),
        ({"AUTH": "421 too many connections"}, ChannelUnavailable, 0),
        ({"AUTH": "432 4.7.12 a password transition is needed"}, ChannelUnavailable, 0),
        ({"AUTH": "534 5.7.9 application-specific password required"}, ChannelAuthFailed, 0),
        ({"AUTH": SILENCE}, ChannelUnavailable, 0),
        ({"MAIL": "530 log in first"}, ChannelAuthFailed, 0),
        ({"MAIL": "552 too big"}, MailTooLarge, 0),
        ({"MAIL": "550 not yours"}, ChannelMisconfigured, 0),
        ({"MAIL": HANG_UP}, ChannelUnavailable, 0),
        ({"RCPT": "550 unknown"}, DeliveryFailed, 0),
        ({"RCPT": "450 grey"}, ChannelUnavailable, 0),
        ({"RCPT": SILENCE}, ChannelUnavailable, 0),
        ({"RCPT_TO:<bot": "450 full"}, ChannelUnavailable, 0),
        ({"RCPT_TO:<bot": "550 no"}, ChannelUnavailable, 0),
        ({"RCPT_TO:<bot": HANG_UP}, ChannelUnavailable, 0),
        ({"DATA": "451 later"}, ChannelUnavailable, 1),
        ({"DATA": "554 no"}, DeliveryFailed, 1),
        ({"end": "451 later"}, ChannelUnavailable, 1),
        ({"end": "554 spam"}, DeliveryFailed, 1),
        ({"end": "421 closing"}, ChannelUnavailable, 1),
        ({"end": SILENCE}, DeliveryUncertain, 1),
        ({"end": HANG_UP}, DeliveryUncertain, 1),
        ({"end": "rubbish"}, DeliveryUncertain, 1),
        ({"DATA": HANG_UP}, DeliveryUncertain, 1),
    ],
)
async def test_what_each_failure_means(
    answers: dict[str, str], error: type[ChannelError], marked: int
) -> None:
    """Before DATA it is certain; a refusal after it too; silence after it is uncertain and nothing else is."""
    post = Post(**answers)
    with pytest.raises(ChannelError) as caught:
        await submit(post)

    assert type(caught.value) is error, caught.value
    assert len(post.uncertain_before) == marked
    assert "pw-secret" not in str(caught.value)


NOTICE = Envelope("", "alice@mail.test", ("bot+sent@mail.test",), instead="bot@mail.test")


@pytest.mark.parametrize(
    "answers",
    [
        {"MAIL_FROM:<>": "553 no"},
        {"RCPT": "550 who?"},
        {"end": "554 not as nobody"},
        {"DATA": "550 no"},
    ],
)
async def test_an_empty_sender_that_is_refused(answers: dict[str, str]) -> None:
    """A notice goes with no sender, and with ours where the server takes no such mail; once is enough."""
    post = Post()
    await submit(post, NOTICE)
    assert [each for each in post.commands if each.startswith("MAIL")] == ["MAIL FROM:<>"]
    post = Post(**answers)
    if "MAIL_FROM:<>" in answers:
        await submit(post, NOTICE)
    else:
        with pytest.raises(DeliveryFailed):
            await submit(post, NOTICE)
    senders = [each.partition(" SIZE")[0] for each in post.commands if each.startswith("MAIL")]
    assert senders == ["MAIL FROM:<>", "MAIL FROM:<bot@mail.test>"]
    assert len(post.taken) == (1 if "MAIL_FROM:<>" in answers else 2 * ("end" in answers))


@pytest.mark.parametrize("answers", [{"MAIL": "451 later"}, {"end": "552 too big"}, {"end": HANG_UP}])
async def test_an_empty_sender_is_not_what_every_refusal_is_about(answers: dict[str, str]) -> None:
    """Later, too large and unknown stay what they are: nothing is handed in a second time."""
    post = Post(**answers)
    with pytest.raises(ChannelError):
        await submit(post, NOTICE)
    assert sum(each.startswith("MAIL") for each in post.commands) == 1


async def test_our_copy_goes_to_the_plain_address_where_tags_are_unknown() -> None:
    """A server without plus-addresses still gets a copy taken."""
    post = Post(**{"RCPT_TO:<bot+sent": "550 unknown"})
    await submit(post)

    assert (
        post.commands[-2:] == ["RCPT TO:<bot@mail.test>", "DATA"]
        or "RCPT TO:<bot@mail.test>" in post.commands
    )
    assert len(post.taken) == 1


async def test_without_copies_there_is_none() -> None:
    """Where the provider keeps sent mail, nobody else gets any."""
    post = Post()
    await submit(post, Envelope("bot@mail.test", "alice@mail.test"))

    assert [command for command in post.commands if command.startswith("RCPT")] == [
        "RCPT TO:<alice@mail.test>"
    ]


async def test_what_is_too_large_is_not_even_begun() -> None:
    """The server's own limit is read before anything is sent."""
    post = Post()
    with pytest.raises(DeliveryFailed) as caught:
        await submit(post, raw=b"x" * 100_001)

    assert "100000" in str(caught.value)
    assert not any(command.startswith("MAIL") for command in post.commands)


async def test_a_mark_that_cannot_be_made_stops_the_submission() -> None:
    """If the point of no return cannot be recorded, it is not passed."""
    post = Post()

    async def full() -> None:
        raise ZeroDivisionError

    async with submitter(post) as door:
        with pytest.raises(ZeroDivisionError):
            await door.submit(ENVELOPE, b"x\r\n", context=None, uncertain=full)
    assert post.taken == []


class TestInPieces:
    """A large mail is handed over in pieces; to the server it is the same."""

    RAW = b"Subject: x\r\n\r\n" + b".a line of text\r\n..two\r\n" * 1_200

    async def test_the_same_bytes(self) -> None:
        """Dots doubled, the end where it belongs."""
        post = Post()
        await submit(post, raw=self.RAW, large_bytes=1_000)

        assert post.taken == [self.RAW.replace(b"\r\n.", b"\r\n..") + b".\r\n"]

    @pytest.mark.parametrize("end", [b"\n.\n", b"\r.\r", b"\n.\r\n"])
    async def test_nothing_in_it_ends_it(self, end: bytes) -> None:
        """Half a line end is a whole one before it leaves, so it is no end of the mail to the next server."""
        post = Post()
        await submit(post, raw=self.RAW + b"x" + end + b"MAIL FROM:<eve@evil.test>\r\n", large_bytes=1_000)

        assert len(post.taken) == 1
        assert post.taken[0].count(b"\n") == post.taken[0].count(b"\r\n") == post.taken[0].count(b"\r")
        assert b"\r\n..\r\nMAIL FROM" in post.taken[0]

    @pytest.mark.parametrize(
        ("answers", "error"),
        [
            ({"DATA": "451 later"}, ChannelUnavailable),
            ({"DATA": "552 5.3.4 too big"}, MailTooLarge),
            ({"DATA": HANG_UP}, DeliveryUncertain),
            ({"end": "552 5.3.4 too big"}, MailTooLarge),
            ({"end": "554 spam"}, DeliveryFailed),
            ({"end": "451 later"}, ChannelUnavailable),
            ({"end": HANG_UP}, DeliveryUncertain),
        ],
    )
    async def test_what_each_failure_means(self, answers: dict[str, str], error: type[ChannelError]) -> None:
        """As for a small one."""
        post = Post(**answers)
        with pytest.raises(ChannelError) as caught:
            await submit(post, raw=self.RAW, large_bytes=1_000)

        assert type(caught.value) is error, caught.value
        assert len(post.uncertain_before) == 1


async def test_who_gets_it_besides() -> None:
    """One that the server does not take keeps it from nobody else; our own copy comes last."""
    post = Post(**{"RCPT_TO:<carol": "550 unknown"})
    cc = ("carol@mail.test", "dave@mail.test")
    await submit(post, Envelope("bot@mail.test", "alice@mail.test", ("bot+sent@mail.test",), cc))

    told = [command for command in post.commands if command.startswith("RCPT")]
    assert told == [f"RCPT TO:<{who}@mail.test>" for who in ("alice", "carol", "dave", "bot+sent")]
    assert len(post.taken) == 1


@pytest.mark.parametrize(
    ("answer", "wrong"), [("535 5.7.8 no", True), ("534 5.7.9 app password needed", False)]
)
async def test_only_535_speaks_of_a_wrong_password(answer: str, wrong: bool) -> None:
    """Of everything else the words of the server are told."""
    with pytest.raises(ChannelAuthFailed) as caught:
        await submit(Post(AUTH=answer))
    assert ("username and password" in str(caught.value)) is wrong
    assert answer in str(caught.value)
