"""
The life of an IMAP link against scripted servers: loss, silence, bursts, refusals.

Each trap has one script and one outcome per class: what ours promises, and what the stock class does instead.
If a new aioimaplib no longer falls into a trap, the second test says so, and the work-around can go.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import anyio
import pytest

from channels.email.imap.imap_protocol import HardenedProtocol, ImapRefused, LinkLost
from tests.doubles.imap_server import Dialogue
from tests.imap_links import LIMIT_S, begin, now, ours, stock

pytestmark = pytest.mark.virtual_time


class TestLossDuringIdle:
    """Trap 1."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        await server.command("IDLE")
        await server.say("+ idling")
        await asyncio.sleep(0.05)
        server.hang_up()

    async def test_ours_raises_at_once(self) -> None:
        """A connection that breaks during IDLE ends the waiting and raises."""
        async with ours(self.script) as protocol:
            started = now()
            with pytest.raises(LinkLost):
                async with protocol.idling(deadline_s=10):
                    await protocol.pushed.wait()
            assert now() - started < 5

    async def test_stock_sleeps_to_its_limit(self) -> None:
        """The stock class waits for 29 minutes."""
        async with stock(self.script) as client:
            started = now()
            await client.idle_start()
            with pytest.raises(TimeoutError):
                await client.wait_server_push(timeout=1740)
            assert now() - started >= 1740


class TestDoneWithoutAnswer:
    """Trap 2."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        await server.command("IDLE")
        await server.say("+ idling")
        await server.until_gone()

    async def test_ours_gives_the_link_up_at_the_deadline(self) -> None:
        """Ten seconds after DONE the server is taken for dead."""
        async with ours(self.script) as protocol:
            started = now()
            with pytest.raises(TimeoutError):
                async with protocol.idling(deadline_s=10):
                    pass
            assert 10 <= now() - started < 15
            assert protocol.lost is not None

    async def test_stock_waits_for_ever(self) -> None:
        """The stock class has no limit for it."""
        async with stock(self.script) as client:
            idle = await client.idle_start()
            client.idle_done()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(idle, 3600)


class TestManyLinesAtOnce:
    """Trap 3."""

    LINES = 20_000

    async def script(self, server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("NOOP")
        lines = [f"* {number} FETCH (FLAGS (\\Seen))" for number in range(1, self.LINES + 1)]
        await server.say(*lines, f"{tag} OK done")
        await server.until_gone()

    async def test_ours_reads_them(self) -> None:
        """Twenty thousand lines in one piece are twenty thousand responses."""
        async with ours(self.script) as protocol:
            reply = await protocol.run("NOOP", timeout_s=LIMIT_S)
            assert len(reply.untagged) == self.LINES

    async def test_stock_runs_out_of_stack(self) -> None:
        """The stock class recurses per line, loses the connection and tells nobody."""
        async with stock(self.script) as client:
            with pytest.raises(TimeoutError):
                await client.noop()


class TestCostPerLine:
    """Trap 4. Calls are counted, not seconds."""

    @staticmethod
    def calls(feed: Callable[[bytes], None], lines: int) -> int:
        data = b"".join(b"* %d FETCH (UID %d)\r\n" % (number, number) for number in range(1, lines + 1))
        count = 0

        def profile(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            for start in range(0, len(data), 500):
                feed(data[start : start + 500])
        finally:
            sys.setprofile(None)
        return count

    async def test_ours_is_linear(self) -> None:
        """Twice as many lines are twice the work."""

        async def feeding(lines: int) -> int:
            async def script(server: Dialogue) -> None:
                await begin(server)
                await server.until_gone()

            async with ours(script) as protocol, anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetch, protocol)
                await asyncio.sleep(0.01)
                count = self.calls(protocol.data_received, lines)
                tasks.cancel_scope.cancel()
            return count

        assert await feeding(400) < 2.5 * await feeding(200)

    @staticmethod
    async def _fetch(protocol: HardenedProtocol) -> None:
        await protocol.run("FETCH", "1:*", "(UID)", uid=True, timeout_s=LIMIT_S)

    async def test_stock_is_quadratic(self) -> None:
        """The stock class looks at all earlier lines for each line."""

        async def feeding(lines: int) -> int:
            async def script(server: Dialogue) -> None:
                await begin(server)
                await server.until_gone()

            async with stock(script) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.uid, "fetch", "1:*", "(UID)")
                await asyncio.sleep(0.01)
                count = self.calls(client.protocol.data_received, lines)
                tasks.cancel_scope.cancel()
            return count

        assert await feeding(400) > 3 * await feeding(200)


class TestLateReply:
    """Trap 5."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("NOOP")
        await asyncio.sleep(60)
        await server.say(f"{tag} OK late")
        await server.until_gone()

    async def test_ours_never_uses_such_a_link_again(self) -> None:
        """After a timeout the next command fails at once."""
        async with ours(self.script) as protocol:
            with pytest.raises(TimeoutError):
                await protocol.run("NOOP", timeout_s=5)
            started = now()
            with pytest.raises(LinkLost):
                await protocol.run("NOOP", timeout_s=5)
            assert now() - started < 1

    async def test_ours_gives_the_link_up_when_cancelled(self) -> None:
        """A command that is cancelled in the middle takes the link with it."""
        async with ours(self.script) as protocol:
            with anyio.move_on_after(1):
                await protocol.run("NOOP", timeout_s=5)
            assert protocol.lost is not None

    async def test_stock_hangs_in_every_later_command(self) -> None:
        """The stock class breaks when the late reply comes, and every command runs into its limit."""
        async with stock(self.script) as client:
            with pytest.raises(TimeoutError):
                await client.noop()
            await asyncio.sleep(60)
            started = now()
            with pytest.raises(TimeoutError):
                await client.noop()
            assert now() - started >= LIMIT_S


class TestArrivalInsideAnotherReply:
    """Trap 6."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await begin(server)
        tag, _ = await server.command("UID SEARCH")
        await server.say("* SEARCH 1", "* 2 EXISTS", f"{tag} OK done")
        await server.command("IDLE")
        await server.say("+ idling")
        await server.until_gone()

    async def test_ours_remembers_it(self) -> None:
        """EXISTS inside the reply to SEARCH is there when one wants to wait."""
        async with ours(self.script) as protocol:
            protocol.pushed.clear()
            assert await protocol.uid_search("UID", "1:*", timeout_s=LIMIT_S) == [1]
            assert protocol.pushed.is_set()
            assert protocol.exists == 2

    async def test_stock_throws_it_away(self) -> None:
        """The stock class idles on, with a mail in the box that nobody announced."""
        async with stock(self.script) as client:
            await client.uid_search("UID 1:*", charset=None)
            await client.idle_start()
            with pytest.raises(TimeoutError):
                await client.wait_server_push(timeout=1740)


class TestSentAway:
    """Trap 8."""

    @staticmethod
    async def script(server: Dialogue) -> None:
        await server.say("* BYE too many connections")
        await server.until_gone()

    async def test_ours_says_why(self) -> None:
        """A greeting of BYE raises at once, with the server's words."""
        async with ours(self.script, state="connected") as protocol:
            started = now()
            with pytest.raises(LinkLost) as caught:
                await protocol.wait_greeting(LIMIT_S)
            assert "too many connections" in str(caught.value.__cause__)
            assert now() - started < 5

    async def test_stock_waits_to_its_limit(self) -> None:
        """The stock class loses the words and times out."""
        async with stock(self.script, state="connected") as client:
            started = now()
            with pytest.raises(TimeoutError):
                await client.wait_hello_from_server()
            assert now() - started >= LIMIT_S


class TestRefusedToken:
    """Trap 9."""

    @staticmethod
    async def ours_script(server: Dialogue) -> None:
        await server.greet()
        tag, _ = await server.command("AUTHENTICATE XOAUTH2")
        await server.say("+ ")
        assert await server.line() == "token"
        await TestRefusedToken.refuse(server, tag)

    @staticmethod
    async def stock_script(server: Dialogue) -> None:
        await server.greet()
        tag, _ = await server.command("AUTHENTICATE XOAUTH2")
        await TestRefusedToken.refuse(server, tag)

    @staticmethod
    async def refuse(server: Dialogue, tag: str) -> None:
        await server.say("+ eyJzdGF0dXMiOiI0MDEifQ==")
        assert await server.line() == ""
        await server.say(f"{tag} NO [AUTHENTICATIONFAILED] expired")
        await server.until_gone()

    async def test_ours_hears_the_refusal(self) -> None:
        """The error challenge is acknowledged, so the server gets to its NO."""
        async with ours(self.ours_script, state="greeted") as protocol:
            with pytest.raises(ImapRefused) as caught:
                await protocol.sasl("XOAUTH2", "token", LIMIT_S)
            assert "expired" in caught.value.text

    async def test_stock_never_answers(self) -> None:
        """The stock class leaves the challenge alone."""
        async with stock(self.stock_script, state="greeted") as client:
            with pytest.raises(TimeoutError):
                await client.xoauth2("bot", "token")
