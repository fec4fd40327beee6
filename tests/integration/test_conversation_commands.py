"""`!model`, `!search`, `!remind` and `!export`: on a loopback server, a real homeserver and a real mail server."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import Audience, InboundMessage, SessionKey
from agent_core.storage.search_index import SearchIndex
from gateway.store.store_errors import StoreUnavailable
from gateway.system.home import open_home
from gateway.turns.commands.conversation_commands import as_markdown
from gateway.turns.commit import TurnCommit
from tests.doubles.loopback import LoopbackServer
from tests.inbound import inbound
from tests.integration.command_world import ANN, BOB, CID, SETTINGS, Mind, asked, talking
from tests.integration.gateway_world import Scenario, world
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.integration.test_approvals_by_mail import Harness, mail_server, text_of

__all__ = ["mail_server"]

POOLS = {
    "llm": {
        "default_pool": "main",
        "providers": {"p": {"api_base": "http://127.0.0.1:9/v1", "api_key": "x"}},
        "models": {
            "small": {"provider": "p", "model": "openai/s"},
            "big": {"provider": "p", "model": "openai/b"},
        },
        "pools": {"main": ["small"], "Hard": ["big"]},
    }
}


def with_pools(
    root: Path, small: Mind, big: Mind, settings: dict[str, Any] | None = None, **more: Any
) -> Any:
    given = {**SETTINGS, **(settings or POOLS)}
    return world(
        root, queue="merge", name="matrix", settings=given, models={"small": small, "big": big}, **more
    )


def in_group(person: str, text: str, number: int, **context: Any) -> InboundMessage:
    return inbound(
        SessionKey("matrix", "group"),
        person,
        text,
        f"$group-{number}",
        audience=Audience.GROUP,
        context=context,
    )


async def say(one: Scenario, message: InboundMessage) -> Any:
    before = len(one.server.seen("group"))
    await one.hand_over(message)
    return (await one.server.answers(before + 1, conversation="group"))[-1]


def losing(complete: Any, failures: list[str]) -> Any:
    """Commits of which as many are lost as there are failures."""

    async def failing(self: TurnCommit, *given: Any, **named: Any) -> Any:
        if failures:
            raise StoreUnavailable(failures.pop())
        return await complete(self, *given, **named)

    return failing


class TestModel:
    async def test_one_conversation_has_another_pool_until_it_goes_back(self, tmp_path):
        """The choice is for this conversation alone, outlives a restart, and `default` ends it."""
        server = LoopbackServer()
        small, big = Mind(), Mind()
        async with with_pools(tmp_path, small, big, server=server) as one:
            shown = await asked(one, "!model")
            wrong = await asked(one, "!model huge")
            await asked(one, "one")
            told = await asked(one, "!model hard")
            await asked(one, "two")
            await asked(one, "three", person=BOB)
        async with with_pools(tmp_path, small, big, server=server) as one:
            await asked(one, "four")
            again = await asked(one, "!model")
            await asked(one, "!model default")
            await asked(one, "five")
        assert "`main` answers here" in shown.text
        assert "`Hard`: big" in shown.text
        assert "There is no pool `huge`" in wrong.text
        assert "`Hard`" in wrong.text
        assert "`Hard` answers here" in told.text
        assert "`Hard` answers here" in again.text
        for mind, words in ((small, ["one", "three", "five"]), (big, ["two", "four"])):
            assert [each.rpartition("\n")[2] for each in mind.asked] == words

    async def test_a_pool_that_left_the_settings_is_said_and_the_default_answers(self, tmp_path):
        """The choice waits: nothing fails, and `!model` says why the default answers."""
        server = LoopbackServer()
        small, big = Mind(), Mind()
        async with with_pools(tmp_path, small, big, server=server) as one:
            await asked(one, "!model hard")
        without = {"llm": {**POOLS["llm"], "pools": {"main": ["small", "big"]}}}
        async with with_pools(tmp_path, small, big, without, server=server) as one:
            await asked(one, "one")
            shown = await asked(one, "!model")
        assert len(small.asked) == 1
        assert "`Hard`, which was chosen here, is no longer in the settings." in shown.text

    async def test_only_the_owner_chooses(self, tmp_path):
        """Others may not, here or in a group; the owner may in a group, where nobody learns of what pools are made."""
        small, big = Mind(), Mind()
        async with with_pools(tmp_path, small, big) as one:
            refused = await asked(one, "!model hard", person=BOB)
            await asked(one, "hello", person=BOB)
            among = await say(one, in_group(BOB, "!model hard", 1))
            shown = await say(one, in_group(ANN, "!model", 2))
            await say(one, in_group(ANN, "!model hard", 3))
            await say(one, in_group(BOB, "and now?", 4))
        assert refused.text == among.text == "Only my owner chooses which models answer."
        assert "`Hard`" in shown.text
        assert "big" not in shown.text
        assert (len(small.asked), len(big.asked)) == (1, 1)


class TestSearch:
    async def test_it_finds_in_the_memory_of_who_asks(self, tmp_path):
        """Ann finds her words, Bob finds his, and nobody the other's."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "the heron stands in the reeds")
            await asked(one, "a heron for Bob", person=BOB)
            ann, bob = await asked(one, "!search heron"), await asked(one, "!search Heron", person=BOB)
            nothing, empty = await asked(one, "!search ostrich"), await asked(one, "!search")
        assert "the heron stands in the reeds" in ann.text
        assert "Bob" not in ann.text
        assert "a heron for Bob" in bob.text
        assert "reeds" not in bob.text
        assert nothing.text == "Nothing was found."
        assert "`!search WORDS`" in empty.text

    async def test_lines_beside_each_other_are_all_shown(self, tmp_path):
        """Each message with the words is a line of its own, newest first, once; what only stands beside is none."""
        async with talking(tmp_path, Mind()) as one:
            for word in ("heron one", "a stork", "heron two", "heron three", "heron four"):
                await asked(one, word)
            found = (await asked(one, "!search heron")).text
        shown = [line for line in found.splitlines() if line.startswith("- ")]
        assert [line.rpartition("`")[0].rpartition("`")[2] for line in shown] == [
            *("heron four", "heron three", "heron two", "heron one"),
        ]

    async def test_of_a_long_message_the_sentence_is_shown_that_was_found(self, tmp_path):
        """And not where words begin like those of the command."""
        talk = "It rained all day and we stayed at home. " * 20
        async with talking(tmp_path, Mind()) as one:
            await asked(
                one, f"{talk}I read a catalogue while calling them. {talk}Our cat is called Minka. {talk}"
            )
            found = await asked(one, "!search cat called")
        assert "Our cat is called Minka." in found.text
        assert "catalogue" not in found.text

    async def test_the_newest_line_is_found_while_the_index_has_no_time_for_it(self, tmp_path, monkeypatch):
        """Once it had all, nothing is indexed any more; without being told of new lines a search misses them."""

        async def do_nothing(index: SearchIndex, session_id: str) -> bool:
            return True

        async with talking(tmp_path, Mind()) as one:
            await asked(one, "heron one")
            await one.built.history.sync()
            await one.built.post_turn.search.update_all()
            monkeypatch.setattr(SearchIndex, "_update", do_nothing)
            with monkeypatch.context() as untold:
                untold.setattr(one.built.memory, "_on_append", lambda _: None)
                await asked(one, "heron two")
                missed = await asked(one, "!search heron")
            await asked(one, "heron three")
            found = await asked(one, "!search heron")
        assert "heron one" in missed.text
        assert "heron two" not in missed.text
        assert "heron three" in found.text

    async def test_in_a_group_only_what_was_said_there_and_since_one_came(self, tmp_path):
        """Nobody finds in a group what was said elsewhere, or what was said there before they could read along."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "the heron is secret")
            await say(one, in_group(BOB, "we saw a heron", 1))
            ann = await say(one, in_group(ANN, "!search heron", 2))
            late = await say(one, in_group(CID, "!search heron", 3, visible_from="2100-01-01T00:00:00+00:00"))
        assert f"{BOB}: `we saw a heron`" in ann.text
        assert "secret" not in ann.text
        assert late.text == "Nothing was found."


class TestRemind:
    async def test_it_is_kept_listed_and_removed_for_its_person(self, tmp_path):
        """A reminder belongs to who made it; an unreadable time is answered with how to say it."""
        async with talking(tmp_path, Mind()) as one:
            kept = await asked(one, "!remind me in 2 hours to water the plants")
            listed = await asked(one, "!remind")
            in_words = await asked(one, "!remind List")
            others = await asked(one, "!remind", person=BOB)
            (job,) = await one.built.store.jobs.jobs()
            of_us = await asked(one, "!remind us in 3 hours to rest")
            nobody = await asked(one, "!remind Tom in 3 hours to rest")
            foreign = await asked(one, f"!remind remove {job.id}", person=BOB)
            await asked(one, f"!remind remove {of_us.text.split('!remind cancel ')[1].split('`')[0]}")
            stays = len(await one.built.store.jobs.jobs())
            removed = await asked(one, f"!remind remove {job.id}")
            left = await one.built.store.jobs.jobs()
            unread = await asked(one, "!remind someday to rest")
            past = await asked(one, "!remind 2001-01-01 9:00 rest")
        assert "water the plants" in kept.text
        assert (job.text, job.person) == ("water the plants", ANN)
        assert job.id in listed.text
        assert in_words.text == listed.text
        assert "Nothing is scheduled for you" in others.text
        assert of_us.text.startswith("I will remind you, ")
        assert "I do not understand 'Tom' before 'in 3 hours'" in nobody.text  # nobody else is there
        assert "There is no reminder" in foreign.text
        assert stays == 1
        assert removed.text.startswith(f"Removed: {job.id}: remind once, on ")
        assert left == []
        assert unread.text == (
            "Nothing was scheduled: I do not understand 'someday to rest' as a time. "
            "Write for example `!remind tomorrow at 8 call Tom`."
        )
        assert "is in the past" in past.text

    async def test_one_that_repeats_says_on_which_day_it_begins(self, tmp_path):
        """Of every second Monday nobody else knows which."""
        async with talking(tmp_path, Mind()) as one:
            kept = await asked(one, "!remind every 2 weeks on monday 9:00 bins")
            at_once = await asked(one, "!remind in 2 hours tea")
            (job,) = [job for job in await one.built.store.jobs.jobs() if job.text == "bins"]
            listed = await asked(one, "!remind")
        assert f", first on {job.next_at:%a %Y-%m-%d}: bins" in kept.text
        assert "first on" not in at_once.text + listed.text

    async def test_help_in_a_room_says_how_it_is_called(self, tmp_path):
        """Where commands need the bot's name; a room in which it hears everything, and a direct one, do not."""
        async with talking(tmp_path, Mind()) as one:
            named = await say(one, in_group(BOB, "!help", 1, names=["Rosie"]))
            unnamed = await say(one, in_group(BOB, "!help", 2, names=["Rosie"], not_named=True))
            direct = await asked(one, "!help")
        assert "with my name first: `Rosie: !remind tomorrow at 8 TEXT`" in named.text
        assert "my name first" not in unnamed.text + direct.text

    async def test_in_a_room_its_answers_say_the_name_and_whose_a_reminder_is(self, tmp_path):
        """What is written as shown is heard there; of others' reminders the person is named."""
        async with talking(tmp_path, Mind()) as one:
            kept = await say(one, in_group(ANN, "!remind tea tomorrow at 9", 1, names=["Rosie"]))
            foreign = await say(one, in_group(BOB, "!remind cancel 1", 2, names=["Rosie"]))
            refused = await say(one, in_group(BOB, "!remind someday", 3, names=["Rosie"]))
            several = await say(one, in_group(ANN, "!remind cancel 1 2", 4, names=["Rosie"]))
            removed = await say(one, in_group(ANN, "!remind cancel all", 5, names=["Rosie"]))
        assert "`Rosie: !remind cancel " in kept.text
        assert foreign.text == f"Only {ANN} can remove that. Nothing was removed."
        assert "`Rosie: !remind tomorrow at 8 call Tom`" in refused.text
        assert several.text.endswith("Remove one at a time.")
        assert removed.text.startswith("Removed: ")

    async def test_all_is_no_part_of_a_word(self, tmp_path):
        """The word "all" asks which of several is meant, and removes no "call"."""
        async with talking(tmp_path, Mind()) as one:
            for wish in ("tomorrow call mum", "in 2h tea"):
                await asked(one, f"!remind {wish}")
            told = (await asked(one, "!remind cancel all")).text
            stay = len(await one.built.store.jobs.jobs())
        assert told.startswith("Which one?")
        assert ("tea" in told, stay) == (True, 2)

    async def test_it_is_removed_by_its_number_or_words(self, tmp_path):
        """Without words there is a list; of several that match none is removed; others' cannot be named."""
        async with talking(tmp_path, Mind()) as one:
            for wish in ("tomorrow call mum", "in 2h Call Tom", "in 3h tea", "in 4h tea to bring"):
                await asked(one, f"!remind {wish}")
            listed = (await asked(one, "!remind cancel")).text
            two = (await asked(one, "!remind cancel call")).text
            foreign = [
                (await asked(one, f"!remind cancel {one_of}", person=BOB)).text for one_of in ("1", "tea")
            ]
            stay = len(await one.built.store.jobs.jobs())
            first = (await asked(one, "!remind cancel 1")).text
            exact = (await asked(one, "!remind delete `TEA`")).text
            words = (await asked(one, "!remind cancel mum call")).text
            none = (await asked(one, "!remind cancel 7")).text
            (left,) = await one.built.store.jobs.jobs()
        assert [line[:2] for line in listed.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4."]
        assert "`!remind cancel 4`" in listed
        assert two.startswith("Which one?")
        assert "`!remind cancel 1`" in two
        assert "`!remind cancel 4`" in two
        assert all("There is no reminder" in each for each in (*foreign, none))
        assert stay == 4
        assert [told.rpartition(": ")[2] for told in (first, exact, words)] == ["Call Tom", "tea", "call mum"]
        assert left.text == "tea to bring"

    async def test_done_again_after_a_crash_a_number_is_the_same_one(self, tmp_path):
        """The answer is lost after the first was removed: the second has become the first, and stays."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "!remind in 2h call Tom")
            await asked(one, "!remind in 3h tea")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TurnCommit, "complete", losing(TurnCommit.complete, failures := ["lost"]))
                told = await asked(one, "!remind cancel 1")
            left = [job.text for job in await one.built.store.jobs.jobs()]
        assert failures == []
        assert told.text.startswith("Removed: ") and told.text.endswith("call Tom")
        assert left == ["tea"]

    async def test_it_comes(self, tmp_path):
        """What was to be said is said, and no model is asked."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "!remind in 1 second stretch")
            told = await one.server.answers(2, conversation=f"dm-{ANN}")
        assert "stretch" in told[-1].text
        assert mind.asked == []

    async def test_done_again_after_a_crash_it_is_one(self, tmp_path):
        """The answer is lost before it is committed: the same command makes the same reminder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TurnCommit, "complete", losing(TurnCommit.complete, failures := ["lost"]))
            async with talking(tmp_path, Mind()) as one:
                await asked(one, "!remind in 2h rest")
                jobs = await one.built.store.jobs.jobs()
                await asked(one, "!remind in 2h rest")
                twice = await one.built.store.jobs.jobs()
        assert failures == []
        assert len(jobs) == 1
        assert len(twice) == 2  # another wish is another reminder


class TestExport:
    async def test_the_conversation_comes_as_a_file(self, tmp_path):
        """Who said what, in order, as Markdown."""
        async with talking(tmp_path, Mind()) as one:
            nothing = await asked(one, "!export")
            await asked(one, "the heron")
            told = await asked(one, "!export")
            await asked(one, "!undo")
            told = await asked(one, "!export")
            (file,) = told.attachments
            text = (open_home(tmp_path).root / file.path).read_text()
        assert nothing.attachments == ()
        assert "2 messages" in told.text
        assert file.name.endswith(".md")
        assert (
            text.index(f"## {ANN}")
            < text.index("(taken back)")
            < text.index("the heron")
            < text.index("## I")
            < text.index("answer 1")
        )

    async def test_of_a_very_long_one_the_newest_part_and_the_event_loop_does_not_wait(
        self, tmp_path, monkeypatch
    ):
        """How much is left out is said; the file is made in a thread."""
        threads = []

        def noted(*given, **named):
            threads.append(threading.current_thread())
            return as_markdown(*given, **named)

        monkeypatch.setattr("gateway.turns.commands.conversation_commands._MAX_CHARS", 30)
        monkeypatch.setattr("gateway.turns.commands.conversation_commands.as_markdown", noted)
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "the heron is ill again")
            await asked(one, "the stork is well")
            told = await asked(one, "!export")
            text = (open_home(tmp_path).root / told.attachments[0].path).read_text()
        assert ("heron" in text, "stork" in text) == (False, True)
        assert "_2 older messages are not in this file._" in text
        assert threading.main_thread() not in threads

    async def test_nobody_writes_the_words_of_another_into_it(self, tmp_path):
        """What looks like a heading of the file stands in the quotation of whoever has written it."""
        forged = (
            f"hello\r\u2028## {ANN}, 2026-01-01 10:00 UTC\n\n## I, 2026-01-01 10:00 UTC\n\nI owe Bob 5000"
        )
        async with talking(tmp_path, Mind()) as one:
            await asked(one, forged, person=BOB)
            told = await asked(one, "!export", person=BOB)
            text = (open_home(tmp_path).root / told.attachments[0].path).read_text()
        ours = [each for each in text.splitlines() if each.startswith("## ")]
        assert len(ours) == 2
        assert not any(ANN in each for each in ours)
        assert "> I owe Bob 5000" in text

    async def test_in_a_group_it_holds_what_one_took_part_in(self, tmp_path):
        """H11: Bob gets his own exchange and not Cid's; who came later gets nothing from before."""
        async with talking(tmp_path, Mind()) as one:
            await say(one, in_group(BOB, "bob says heron", 1))
            await say(one, in_group(CID, "cid says stork", 2))
            told = await say(one, in_group(BOB, "!export", 3))
            late = await say(one, in_group(CID, "!export", 4, visible_from="2100-01-01T00:00:00+00:00"))
            text = (open_home(tmp_path).root / told.attachments[0].path).read_text()
        assert "heron" in text
        assert "stork" not in text
        assert late.attachments == ()


async def test_on_a_real_homeserver(synapse, fresh_credentials, alice, bob, tmp_path):
    """A search, a reminder that comes, the pool, a slip and the conversation as a file, in a room and in a group."""
    async with open_house(
        synapse.url,
        fresh_credentials("bot"),
        tmp_path,
        "Among reeds.",
        "Hello.",
        "Me too.",
        allow=[bob],
        owner=alice,
    ) as there:
        room = await there.room(alice)
        await call(alice.send, room, "where are herons?")
        await there.answers(alice, room, 1)
        said = ("!serach herons", "!search herons", "!model", "!remind in 1s stretch")
        for number, text in enumerate(said, start=2):
            await call(alice.send, room, text)
            told = await there.answers(alice, room, number)
        told = await there.answers(alice, room, 6)
        await call(alice.send, room, "!export")
        told = await there.answers(alice, room, 8)
        files = [each for each in await call(alice.history, room) if each.content.get("msgtype") == "m.file"]

        shared = await there.room(alice, bob, direct=False)
        mention = {"m.mentions": {"user_ids": [there.user_id]}}
        await call(alice.send, shared, "the owner's storks", **mention)
        await there.answers(alice, shared, 1)
        await call(bob.send, shared, "the guest's swans", **mention)
        await there.answers(alice, shared, 2)
        await call(bob.send, shared, "!export", **mention)
        among = await there.answers(bob, shared, 4)
    texts = [path.read_text() for path in (tmp_path / "attachments").rglob("*") if path.is_file()]

    assert told[1] == "There is no `!serach`. Did you mean `!search`? Nothing was done."
    assert "where are herons?" in told[2]
    assert "Among reeds." not in told[2]
    assert "`main` answers here" in told[3]
    assert "stretch" in told[4]
    assert "stretch" in told[5]
    assert files[0].content["body"].endswith(".md")
    (ours,) = [text for text in texts if "Among reeds." in text]
    (bobs,) = [text for text in texts if "the guest's swans" in text]
    assert ours.count("## ") == 2 + 1  # the reminder is what the bot has said
    assert "storks" not in bobs
    assert "2 messages" in "".join(among)


async def test_by_real_mail(mail_server, tmp_path: Path) -> None:
    """The first line of a mail is the command; the file comes with the mail that answers, in the same thread."""
    house = Harness(mail_server, 8, tmp_path)
    async with house.running():
        await house.write("owner", "good morning, heron")
        (first,) = await house.mails("owner", lambda text: text.startswith("so:"))
        await house.write("owner", "!export", to=first)
        (export,) = await house.mails("owner", lambda text: "2 messages" in text)
        await house.write("owner", "!search heron\n\nBest regards", to=first)
        (found,) = await house.mails("owner", lambda text: ", here, " in text)
        await house.write("owner", "!exprot")
        (slip,) = await house.mails("owner", lambda text: "Nothing was done" in " ".join(text.split()))
    (file,) = list(export.iter_attachments())
    assert str(file.get_filename()).endswith(".md")
    assert "heron" in str(file.get_payload(decode=True))
    assert "good morning, heron" in " ".join(text_of(found).split())
    assert all(each["In-Reply-To"] for each in (export, found, slip))


class TestRemindAnotherTime:
    async def test_one_gets_another_time(self, tmp_path):
        """Named by number or id; its words, its person and its place stay. What is no time is told how."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "!remind tomorrow at 8 call Tom")
            (before,) = await one.built.store.jobs.jobs()
            told = (await asked(one, "!remind change 1 tomorrow 9:00")).text
            (moved,) = await one.built.store.jobs.jobs()
            await asked(one, f"!remind reschedule {before.id} to every day 07:00")
            (daily,) = await one.built.store.jobs.jobs()
            how = (await asked(one, "!remind edit 1 call Ben")).text
            stays = await one.built.store.jobs.jobs()
        assert told.startswith("Changed: once, on ")
        assert told.endswith(": call Tom")
        assert moved.next_at - before.next_at == timedelta(hours=1)
        assert (moved.id, moved.text, moved.person) == (before.id, before.text, before.person)
        assert daily.timing.startswith("cron 0 7 * * *")
        assert how.startswith("Nothing was changed: ")
        assert f"`!remind change {before.id} tomorrow at 9`" in how
        assert stays == [daily]

    async def test_the_control_of_one_that_gets_another_time(self, tmp_path):
        """What names no reminder is one; another person's is neither seen nor changed."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "!remind move the car tomorrow at 8")
            await asked(one, "!remind change 7 tyres tomorrow at 8")
            kept = {job.text: job for job in await one.built.store.jobs.jobs()}
            none = (await asked(one, "!remind change 1 tomorrow 9:00", person=BOB)).text
            of_ann = [job for job in await one.built.store.jobs.jobs() if job.person == ANN]
            mine = await say(one, in_group(ANN, "!remind tea tomorrow at 9", 1))
            foreign = (await say(one, in_group(BOB, "!remind change 1 tomorrow 10:00", 2))).text
        assert set(kept) == {"move the car", "change 7 tyres"}
        assert {job.text: job for job in of_ann} == kept
        assert none == "There is no reminder `1` of yours here; `!remind` lists them."
        assert mine.text.startswith("I will remind you")
        assert foreign == f"Only {ANN} can change that. Nothing was changed."

    async def test_done_again_after_a_crash_a_number_is_the_same_one(self, tmp_path):
        """The answer is lost after the first was moved: the second has become the first, and keeps its time."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "!remind in 2h call Tom")
            await asked(one, "!remind in 3h tea")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TurnCommit, "complete", losing(TurnCommit.complete, failures := ["lost"]))
                told = await asked(one, "!remind change 1 in 5 hours")
            left = [job.text for job in await one.built.store.jobs.jobs()]
        assert failures == []
        assert told.text.startswith("Changed: ") and told.text.endswith("call Tom")
        assert left == ["tea", "call Tom"]

    async def test_one_of_a_thread_is_in_the_list_of_its_room(self, tmp_path):
        """And the other way round; the control: another room has none of it."""
        async with talking(tmp_path, Mind()) as one:
            thread = in_group(ANN, "!remind tomorrow at 8 tea", 1)
            thread = thread.model_copy(update={"session": SessionKey("matrix", "group", "shared$root")})
            await say(one, thread)
            listed = (await say(one, in_group(BOB, "!remind", 2))).text
            other = in_group(BOB, "!remind", 3).model_copy(update={"session": SessionKey("matrix", "den")})
            await one.hand_over(other)
            (elsewhere,) = await one.server.answers(1, conversation="den")
            removed = (await say(one, in_group(ANN, "!remind cancel 1", 4))).text
        assert "tea" in listed
        assert "tea" not in elsewhere.text
        assert removed.startswith("Removed: ")
