"""Connections that are handed on while mails wait for one another."""

from __future__ import annotations

import anyio
import pytest

from channels.email.compose.outbound_mail import Envelope
from channels.email.smtp import submission
from channels.email.smtp.submission import ConnectionPool
from tests.unit.channels.email.test_submission import HANG_UP, Post, submitter

pytestmark = pytest.mark.virtual_time
MAIL = b"Subject: x\r\n\r\nhello\r\n"


async def hand_in(post: Post, count: int) -> None:
    """So many mails at the same moment."""
    async with submitter(post) as door, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            envelope = Envelope("bot@mail.test", f"p{number}@mail.test")
            await door.submit(envelope, MAIL, context=None, uncertain=anyio.lowlevel.checkpoint)

        for number in range(count):
            tasks.start_soon(one, number)


def count(post: Post, word: str) -> int:
    return sum(each.startswith(word) for each in post.commands)


async def test_a_crowd_shares_four() -> None:
    """Each mail goes once, on four connections, which are closed in the end; a mail alone has one of its own."""
    post = Post()
    await hand_in(post, 40)
    assert (count(post, "AUTH"), count(post, "MAIL"), len(post.taken)) == (4, 40, 40)
    assert len({each for each in post.commands if each.startswith("RCPT")}) == 40
    alone = Post()
    for _ in range(3):
        await hand_in(alone, 1)
    assert (count(alone, "AUTH"), count(alone, "MAIL")) == (3, 3)


class Short(Post):
    """A server that takes one mail for each connection."""

    answer = "421 that was enough"

    def __init__(self) -> None:
        super().__init__()
        self.served = 0

    async def _command(self, line, reader, writer):
        before = count(self, "MAIL") - 1
        if line.startswith("MAIL") and getattr(writer, "mails", 0):
            await self._say(writer, self.answer)
            return
        if line.startswith("MAIL"):
            writer.mails = 1
            self.served = before + 1
        await super()._command(line, reader, writer)


@pytest.mark.parametrize("answer", ["421 that was enough", "503 what?", HANG_UP])
async def test_a_connection_that_takes_one_mail_only(answer: str) -> None:
    """Whatever it says to the second, that goes on a fresh one, and nobody hears of it."""
    post = Short()
    post.answer = answer
    await hand_in(post, 12)
    assert len(post.taken) == 12
    assert count(post, "AUTH") == 12


async def test_a_mail_that_is_refused_spoils_no_other() -> None:
    """Its connection is closed, and whoever waited opens one."""
    post = Post(**{"RCPT_TO:<p3@": "550 unknown"})
    with pytest.raises(ExceptionGroup) as caught:
        async with submitter(post) as door, anyio.create_task_group() as tasks:

            async def one(number: int) -> None:
                envelope = Envelope("bot@mail.test", f"p{number}@mail.test")
                try:
                    await door.submit(envelope, MAIL, context=None, uncertain=anyio.lowlevel.checkpoint)
                except Exception:
                    await anyio.sleep(1000)
                    raise

            for number in range(20):
                tasks.start_soon(one, number)
    assert len(caught.value.exceptions) == 1
    assert len(post.taken) == 19


class TestRelay:
    async def test_places_and_their_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two at once; the third gets the link of whoever is done, or its right to open one."""
        closed: list[str] = []
        monkeypatch.setattr(submission, "AT_ONCE", 2)
        monkeypatch.setattr(submission, "MAILS_EACH", 3)
        relay: ConnectionPool[str] = ConnectionPool(closed.append)
        first, second = await relay.take(), await relay.take()
        assert (first.link, second.link) == (None, None)
        got: list[str | None] = []

        async def third() -> None:
            got.append((await relay.take()).link)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(third)
            await anyio.sleep(0.1)
            assert relay.release_link(first, "a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(third)
            await anyio.sleep(0.1)
            relay.leave()
        assert got == ["a", None]
        assert not relay.release_link(second, "b"), "nobody waits"
        assert closed == []

    async def test_so_many_mails_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A link that has taken its share is not handed on, although somebody waits."""
        monkeypatch.setattr(submission, "AT_ONCE", 1)
        monkeypatch.setattr(submission, "MAILS_EACH", 2)
        relay: ConnectionPool[str] = ConnectionPool(lambda _: None)
        place = await relay.take()
        links: list[str | None] = []

        async def another() -> None:
            mine = await relay.take()
            links.append(mine.link)
            relay.release_link(mine, "a") or relay.release_link(mine, "b") if mine.link else relay.leave()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(another)
            tasks.start_soon(another)
            await anyio.sleep(0.1)
            assert relay.release_link(place, "a")
        assert links == ["a", None]

    async def test_nobody_waits_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a while there is one connection more."""
        monkeypatch.setattr(submission, "AT_ONCE", 1)
        relay: ConnectionPool[str] = ConnectionPool(lambda _: None)
        await relay.take()
        begun = anyio.current_time()
        place = await relay.take()
        assert (place.link, anyio.current_time() - begun) == (None, pytest.approx(5, abs=0.1))
        relay.leave()
        relay.leave()
        assert (await relay.take()).link is None

    async def test_who_is_cancelled_leaves_nothing_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not while waiting, and not in the moment in which a link comes."""
        closed: list[str] = []
        monkeypatch.setattr(submission, "AT_ONCE", 1)
        relay: ConnectionPool[str] = ConnectionPool(closed.append)
        place = await relay.take()
        with anyio.move_on_after(0.1):
            await relay.take()

        async def another() -> None:
            mine = await relay.take()
            try:
                await anyio.sleep_forever()
            finally:
                closed.append(mine.link or "none")
                relay.leave()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(another)
            await anyio.sleep(0.1)
            assert relay.release_link(place, "a")
            tasks.cancel_scope.cancel()
        assert closed == ["a"]
        begun = anyio.current_time()
        assert (await relay.take()).link is None
        assert anyio.current_time() - begun < 1
