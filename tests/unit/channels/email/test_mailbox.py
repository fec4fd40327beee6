"""The channel's receiving side against scripted servers: what real ones do only now and then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from channels.email.imap.housekeeping import Answered
from channels.email.imap.imap_connect import Timing
from tests.doubles.imap_server import Dialogue
from tests.doubles.mailbox import CAPABILITIES, Post, Store

pytestmark = pytest.mark.virtual_time


class TestReceiving:
    async def test_a_mail_announced_inside_a_search_is_taken_at_once(self, tmp_path: Path) -> None:
        """EXISTS in the reply to SEARCH leads to another look, without waiting for the refresh."""
        store = Store()
        post = Post(store, tmp_path)
        looks = 0

        async def announce(server: Dialogue, tag: str, text: str) -> bool:
            nonlocal looks
            looks += 1
            if looks != 1:
                return False
            store.uids.append(1)
            await server.say("* SEARCH", "* 1 EXISTS", f"{tag} OK done")
            return True

        store.bend["UID SEARCH"] = announce
        async with post.running():
            started = asyncio.get_running_loop().time()
            await post.inbox.until_accepted(1, within_s=3600)
            waited = asyncio.get_running_loop().time() - started

        assert post.inbox.texts == ["number 1"]
        assert waited < Timing().idle_refresh_s / 2

    async def test_what_nobody_announced_is_found_at_the_refresh(self, tmp_path: Path) -> None:
        """Every few minutes the mailbox is looked at anyway."""
        store = Store()
        post = Post(store, tmp_path)
        async with post.running():
            store.uids.append(1)
            await post.inbox.until_accepted(1, within_s=Timing().idle_refresh_s + 60)

        assert post.inbox.texts == ["number 1"]

    async def test_without_idle_the_mailbox_is_asked(self, tmp_path: Path) -> None:
        """NOOP and a look, every now and then."""
        store = Store(capabilities="IMAP4rev1")
        post = Post(store, tmp_path)
        async with post.running():
            store.uids.append(1)
            await post.inbox.until_accepted(1, within_s=2 * Timing().poll_s + 1)

        assert "NOOP" in store.commands
        assert "IDLE" not in store.commands

    async def test_looking_changes_nothing(self, tmp_path: Path) -> None:
        """Bodies are peeked at, structures controlled by senders are never asked for, no flag is touched."""
        store = Store()
        post = Post(store, tmp_path)
        async with post.running():
            store.uids.append(1)
            await post.inbox.until_accepted(1, within_s=3600)

        fetches = [command for command in store.commands if "FETCH" in command]
        assert fetches
        assert all("BODY" not in fetch or "BODY.PEEK[" in fetch for fetch in fetches)
        assert not any(
            word in command for command in store.commands for word in ("STORE", "ENVELOPE", "STRUCTURE")
        )

    async def test_a_server_that_refuses_a_search_for_two_fields_is_asked_for_one(
        self, tmp_path: Path
    ) -> None:
        """Some know no OR, or no field but the usual ones: then the Message-ID alone must do."""
        store = Store(1)

        async def refuse(server: Dialogue, tag: str, text: str) -> bool:
            refused = " OR HEADER" in text
            if refused:
                await server.say(f"{tag} BAD unknown search key")
            return refused

        store.bend["UID SEARCH"] = refuse
        post = Post(store, tmp_path)
        post.inbox.positions |= {"uidvalidity": "7", "uid": "1"}
        async with post.running():
            pass
        searches = [each for each in store.commands if "HEADER" in each]
        assert " OR " in searches[0]
        assert " OR " not in searches[1]

    async def test_numbers_that_went_back_mean_a_new_numbering(self, tmp_path: Path) -> None:
        """A mailbox restored from a backup without a new UIDVALIDITY is read again all the same."""
        store = Store(1, 2, 3)
        post = Post(store, tmp_path)
        async with post.running():
            store.uids.append(4)
            await post.inbox.until_accepted(1, within_s=3600)
        store.uids = [1, 2]
        async with post.running():
            pass

        assert post.inbox.positions["uid"] == "2"
        assert post.inbox.positions["again_to"] == "2"

    async def test_a_server_without_uidnext(self, tmp_path: Path) -> None:
        """Then the last mail says where the end is."""
        store = Store(1, 2, 3)
        post = Post(store, tmp_path)

        async def select(server: Dialogue, tag: str, text: str) -> bool:
            await server.say("* 3 EXISTS", "* OK [UIDVALIDITY 7] ok", f"{tag} OK done")
            return True

        async def last(server: Dialogue, tag: str, text: str) -> bool:
            await server.say("* SEARCH 3", f"{tag} OK done")
            return True

        store.bend = {"SELECT": select, "UID SEARCH UID *": last}
        async with post.running():
            pass

        assert post.inbox.positions["uid"] == "3"
        assert post.inbox.accepted == []

    async def test_refused_housekeeping_is_only_logged(self, tmp_path: Path) -> None:
        """A mailbox that may not be written to is still read."""
        store = Store()
        post = Post(store, tmp_path)

        async def read_only(server: Dialogue, tag: str, text: str) -> bool:
            await server.say(f"{tag} NO [READ-ONLY] no")
            return True

        store.bend["UID STORE"] = read_only
        async with post.running() as (channel, run):
            channel._add_task(Answered(1, 7))
            channel._add_task(Answered(1, 6))
            store.uids.append(1)
            await post.inbox.until_accepted(1, within_s=3600)
            assert not run.ended.is_set()

        assert [command for command in store.commands if "STORE" in command] == [
            "UID STORE 1 +FLAGS.SILENT (\\Seen \\Answered)"
        ], "and what belongs to another numbering is left alone"

    @pytest.mark.parametrize(
        ("flags", "marked"), [("\\Seen \\Answered \\*", True), ("\\Seen \\Answered", False), ("", False)]
    )
    async def test_a_keyword_only_where_the_server_keeps_it(
        self, tmp_path: Path, flags: str, marked: bool
    ) -> None:
        """PERMANENTFLAGS decides; the other flags are set in any case."""
        store = Store()
        post = Post(store, tmp_path)

        async def select(server: Dialogue, tag: str, text: str) -> bool:
            await server.say(
                "* 0 EXISTS",
                f"* OK [PERMANENTFLAGS ({flags})] flags",
                "* OK [UIDVALIDITY 7] ok",
                "* OK [UIDNEXT 1] ok",
                f"{tag} OK [READ-WRITE] done",
            )
            return True

        store.bend["SELECT"] = select
        async with post.running() as (channel, _):
            channel._add_task(Answered(1, 7))
            await anyio.sleep(1)

        (command,) = [command for command in store.commands if "STORE" in command]
        assert ("$SquidbotAnswered" in command) == marked
        assert "\\Seen \\Answered" in command

    @pytest.mark.parametrize("answer", ["OK", "NO", "BAD"])
    async def test_who_wants_to_know_who_we_are_is_told(self, tmp_path: Path, answer: str) -> None:
        """ID after the login and before the first folder; a refusal changes nothing, and nobody else is told."""
        store = Store(capabilities=f"{CAPABILITIES} ID")
        post = Post(store, tmp_path)

        async def told(server: Dialogue, tag: str, text: str) -> bool:
            await server.say(f"{tag} {answer} whatever")
            return True

        store.bend["ID"] = told
        async with post.running():
            pass
        commands = [command.split(" ")[0] for command in store.commands]
        assert commands.index("LOGIN") < commands.index("ID") < commands.index("SELECT")
        assert 'ID ("name" "squidbot")' in store.commands

        silent = Store()
        async with Post(silent, tmp_path / "other").running():
            pass
        assert not any(command.startswith("ID ") for command in silent.commands)

    async def test_a_full_disk_acknowledges_nothing(self, tmp_path: Path) -> None:
        """While the inbox takes nothing, the position stays, and the mail comes again."""
        store = Store()
        post = Post(store, tmp_path)
        async with post.running():
            pass
        store.uids.append(1)
        post.inbox.hold()
        async with post.running(started=False) as (_, run):
            await post.inbox.until_offered(1, within_s=3600)
            assert post.inbox.positions["uid"] == "0"
            await run.cancel()
        post.inbox.release()
        async with post.running():
            pass

        assert post.inbox.texts == ["number 1"]

    async def test_mails_come_in_batches_of_bounded_size(self, tmp_path: Path) -> None:
        """A backlog is neither one transaction nor one per mail, and its position moves along."""
        store = Store()
        post = Post(store, tmp_path)
        async with post.running():
            pass
        store.uids = list(range(1, 121))
        seen: list[tuple[int, str]] = []
        post.inbox.on_accepted = lambda: seen.append((len(post.inbox.accepted), post.inbox.positions["uid"]))
        async with post.running():
            pass

        assert seen == [(50, "50"), (100, "100"), (120, "120")]
        assert post.inbox.texts == [f"number {number}" for number in range(1, 121)]


async def test_cancelling_in_the_middle_leaves_no_connection(tmp_path: Path) -> None:
    """A run that is cancelled while the server is silent ends at once."""
    store = Store()

    async def silent(server: Dialogue, tag: str, text: str) -> bool:
        await server.until_gone()
        raise EOFError

    store.bend["SELECT"] = silent
    post = Post(store, tmp_path)
    async with post.running(started=False) as (_, run):
        await anyio.sleep(1)
        await run.cancel()

    assert run.cancelled
