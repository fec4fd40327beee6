"""Commands through the whole gateway: in order, once, for those who may, and never before a model."""

from __future__ import annotations

import anyio
import pytest

from agent_core.memory.scopes import OWNER
from agent_core.messages import Amendment, SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.provenance import untrusted_origin
from gateway.store.states import InboxState
from gateway.turns.commands import COMMANDS
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import (
    ANN,
    BOB,
    CID,
    DM,
    EVE,
    Mind,
    asked,
    settled,
    talking,
    texts,
)


class TestAnswers:
    async def test_help_names_what_there_is(self, tmp_path):
        """`!help` lists the commands, to the owner also those that decide; no model is asked."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            for_ann = await asked(one, "!help")
            for_bob = await asked(one, "/HELP", person=BOB)
            about = await asked(one, "!help new")
            slip = await asked(one, "!help /serach")
            none = await asked(one, "!help aproove", person=BOB)
            foreign = await asked(one, "!help trust", person=BOB)
        assert "`!stop`" in for_ann.text
        assert "`!approve`" in for_ann.text
        assert "`!stop`" in for_bob.text
        assert "`!approve`" not in for_bob.text
        assert "set aside" in about.text
        assert slip.text == "There is no `!serach`. Did you mean `!search`? `!help` lists all commands."
        assert none.text == "There is no `!aproove`. Did you mean `!approve`? `!help` lists all commands."
        assert foreign.text.endswith("Only my owner may do that.")
        for name in COMMANDS.keys() - {"help"}:
            assert for_ann.text.count(f"- `!{name}`: ") == 1
        assert max(map(len, for_ann.text.splitlines())) < 80
        assert mind.asked == []

    async def test_a_slip_gets_one_line_and_important_words_are_text(self, tmp_path):
        """ "!hlep" is told what was meant; "!important" is a question like any other."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            slip = await asked(one, "!hlep")
            text = await asked(one, "!important")
        assert "`!help`" in slip.text
        assert "\n" not in slip.text
        assert text.text == "answer 1"
        assert "!important" in mind.asked[0]

    async def test_new_sets_the_history_aside_and_keeps_the_memory(self, tmp_path):
        """After `!new` no prompt holds what was said before; the file has all of it, and memory stays."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "the word is xylophone")
            memory = one.built.memory
            await memory.save_global_memory(OWNER, "- likes trains")
            await asked(one, "what was it?")
            began = await asked(one, "!new")
            await asked(one, "and now?")
            history = await memory.load_segment(str(SessionKey("matrix", DM)), start=0, max_messages=50)
            shown = await asked(one, "!memory")
        assert "xylophone" in mind.shown[1]
        assert "xylophone" not in mind.shown[2]
        assert "likes trains" in mind.shown[2]
        assert "new conversation" in began.text
        contents = [message.content for message in history.messages]
        assert any("xylophone" in content for content in contents)
        assert not any("!new" in content or "new conversation" in content for content in contents)
        assert "likes trains" in shown.text

    async def test_what_waits_behind_new_belongs_to_the_new_conversation(self, tmp_path):
        """A question that was sent right after `!new` is answered, and sees nothing of what was before."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "the word is xylophone")
            one.server.say(ANN, "slow one")
            await mind.thinking.wait()
            one.server.say(ANN, "!new")
            one.server.say(ANN, "and now?")
            mind.gate.set()
            await one.server.answers(4, conversation=DM)
        assert "xylophone" not in mind.shown[-1]
        assert "slow one" not in mind.shown[-1]
        assert texts(one)[-1] == "answer 3"

    async def test_memory_is_that_of_the_conversation(self, tmp_path):
        """Another person sees their own notes, a room the room's; the owner's are shown in neither."""
        mind, server = Mind(), LoopbackServer()
        server.groups = {"room"}
        async with talking(tmp_path, mind, server=server) as one:
            await one.built.memory.save_global_memory(OWNER, "- secret of ann")
            await one.built.memory.save_global_memory(MemoryScope(ScopeKind.PERSON, BOB), "- bob sings")
            for_bob = await asked(one, "!memory", person=BOB)
            for_cid = await asked(one, "!memory", person=CID)
            server.say(ANN, "!memory", conversation="room")
            (in_room,) = await server.answers(1, conversation="room")
        assert "bob sings" in for_bob.text
        assert "no notes about you" in for_cid.text
        assert "no notes about this conversation" in in_room.text
        for shown in (for_bob, for_cid, in_room):
            assert "secret" not in shown.text

    async def test_memory_undo_is_of_ones_own_notes(self, tmp_path):
        """The version before comes back with its origins, and nobody else's notes change."""
        server = LoopbackServer()
        server.groups = {"room"}
        page = (untrusted_origin("web", "https://example.org"),)
        bobs = MemoryScope(ScopeKind.PERSON, BOB)
        async with talking(tmp_path, Mind(), server=server) as one:
            memory = one.built.memory
            await memory.save_global_memory(OWNER, "- likes trains")
            await memory.save_global_memory(OWNER, "- likes ships")
            await memory.save_global_memory(bobs, "- bob sings", origins=page)
            await memory.save_global_memory(bobs, "- bob dances")
            done = await asked(one, "!memory undo", person=BOB)
            other = await asked(one, "!memory of", person=CID)
            none = await asked(one, "!memory undo", person=CID)
            his, owners = await memory.load_global_memory(bobs), await memory.load_global_memory(OWNER)
            first = await asked(one, "!memory undo 1", person=ANN)
            assert (await memory.load_global_memory(OWNER)).text.strip() == "- likes trains"
            await asked(one, "!memory undo 0", person=ANN)
            assert not (await memory.load_global_memory(OWNER)).text.strip()
            never = await asked(one, "!memory undo 99", person=ANN)
        assert "version of my notes 1 is back" in first.text
        assert "no such version" in never.text
        assert "is back" in done.text
        assert (his.text.strip(), his.version) == ("- bob sings", 3)
        assert [(each.kind, each.where) for each in his.origins] == [("web", "https://example.org")]
        assert owners.text.strip() == "- likes ships"
        assert "Nothing was done" in other.text
        assert "no such version" in none.text

    async def test_status_says_little_to_others_and_more_to_the_owner(self, tmp_path):
        """Everybody hears how it is; channels and queues are for the owner alone, and not in a group."""
        server = LoopbackServer()
        server.groups = {"room"}
        async with talking(tmp_path, Mind(), server=server) as one:
            for_ann = await asked(one, "!status")
            for_bob = await asked(one, "!status", person=BOB)
            server.say(ANN, "!status", conversation="room")
            (in_room,) = await server.answers(1, conversation="room")
        assert "- Matrix is connected" in for_ann.text
        assert "terminal" not in for_ann.text.lower()
        assert "messages: nothing waits" in for_ann.text  # this one counts for nothing
        for shown in (for_bob, in_room):
            assert shown.text.startswith("I have been running")
            assert "connected" not in shown.text

    async def test_usage_of_a_conversation_and_of_all(self, tmp_path):
        """Others hear what their own conversation has cost; the owner hears of all."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "hello")
            await asked(one, "hello", person=BOB)
            await asked(one, "again", person=BOB)
            for_ann = await asked(one, "!usage")
            for_bob = await asked(one, "!usage", person=BOB)
        assert "330 tokens in 3 calls" in for_ann.text
        assert for_ann.text.startswith("All conversations:")
        assert for_bob.text.count("220 tokens in 2 calls") == 2, "today, and in the last 30 days"
        assert "330" not in for_bob.text

    async def test_without_a_model_commands_are_answered(self, tmp_path):
        """While no model can be reached, what needs none is answered all the same, and says so."""
        mind = Mind()
        mind.away = True
        async with talking(tmp_path, mind, queue="each") as one:
            status = await asked(one, "!status", person=BOB)
            one.server.say(BOB, "a question")
            with anyio.fail_after(60):
                while not [row for row in await one.built.store.inbox.rows() if row.deferrals]:
                    await anyio.sleep(0.02)
            again = await asked(one, "!status", person=CID)
        assert status.text.startswith("I have been running")
        assert "language model is not answering" in again.text


class TestNewWhileAQuestionWaits:
    @pytest.mark.parametrize("restart", [False, True])
    async def test_what_was_asked_before_belongs_to_the_old_conversation(self, tmp_path, restart):
        """
        Two questions wait for a model. `!new` is answered at once; the two are answered with what was said before,
        and what is written after `!new` without it, also if the process ends in between.
        """
        mind, server = Mind(), LoopbackServer()
        async with talking(tmp_path, mind, server=server) as one:
            await asked(one, "the word is xylophone")
            mind.away = True
            one.server.say(ANN, "first of the old")
            with anyio.fail_after(60):
                while not any(row.deferrals for row in await one.built.store.inbox.rows()):
                    await anyio.sleep(0.02)
            one.server.say(ANN, "second of the old")
            began = await asked(one, "!new")
            one.server.say(ANN, "one of the new")
            if not restart:
                mind.away = False
                await settled(one, settled=5)
        if restart:
            mind.away = False
            async with talking(tmp_path, mind, server=server) as one:
                await settled(one, settled=5)
        assert "2 messages wait from before" in began.text
        first, second, new = mind.shown[-3:]
        assert all(word in first for word in ("xylophone", "first of the old"))
        assert all(word in second for word in ("xylophone", "first of the old", "second of the old"))
        assert "one of the new" in new
        assert not any(word in new for word in ("xylophone", "of the old", "answer"))
        assert "one of the new" not in second

    async def test_what_is_stopped_holds_nothing_up(self, tmp_path):
        """After `!new` the waiting question is given up; the next message begins anew."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "the word is xylophone")
            mind.away = True
            one.server.say(ANN, "a question of the old")
            with anyio.fail_after(60):
                while not any(row.deferrals for row in await one.built.store.inbox.rows()):
                    await anyio.sleep(0.02)
            await asked(one, "!new")
            await asked(one, "!stop")
            mind.away = False
            await asked(one, "one of the new")
            await asked(one, "another of the new")
        assert "xylophone" not in mind.shown[-2]
        assert "one of the new" in mind.shown[-1], "only once is anything set aside"


class TestWhoAndWhere:
    async def test_strangers_get_nothing(self, tmp_path):
        """Who is not allowed gets no answer to a command, and stops nothing of others."""
        async with talking(tmp_path, Mind(), allow_from={"matrix": (BOB,)}) as one:
            one.server.say(EVE, "!status")
            one.server.say(EVE, "!stop", conversation=f"dm-{BOB}")
            await asked(one, "hello", person=BOB)
            await settled(one, quarantined=2, settled=1)
        assert texts(one, EVE) == []

    async def test_in_a_group_only_what_is_meant_for_the_bot(self, tmp_path):
        """A `!new` among people is theirs; with the bot's name in front it is ours."""
        mind, server = Mind(), LoopbackServer()
        server.groups = {"room"}
        async with talking(tmp_path, mind, server=server) as one:
            server.say(BOB, "!new", conversation="room", addressed=False)
            server.say(BOB, "@bot: !new", conversation="room")
            (only,) = await server.answers(1, conversation="room")
            await settled(one, settled=1, ignored=1)
        assert "new conversation" in only.text
        assert mind.asked == []

    async def test_what_is_quoted_is_no_command(self, tmp_path):
        """An answer to somebody's "!stop", with the quotation in front, is a question."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            answer = await asked(one, "> !stop\n\nwhy did you do that?")
        assert answer.text == "answer 1"


class TestOrder:
    @pytest.mark.parametrize("queue", ["merge", "each"])
    async def test_a_command_is_never_merged_and_waits_for_nobody(self, tmp_path, queue):
        """Commands are answered at once, and part the questions around them; the model sees no command."""
        mind = Mind()
        async with talking(tmp_path, mind, queue=queue) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            for text in ("two", "three", "!help", "four", "five", "!status"):
                one.server.say(ANN, text)
            commanded = await one.server.answers(2, conversation=DM)
            mind.gate.set()
            await settled(one, settled=7)
            said = texts(one)
        assert "These are the commands" in commanded[0].text
        assert commanded[1].text.startswith("I have been running")
        assert len(said) == (5 if queue == "merge" else 7)
        asked_in_order = "\n".join(mind.asked)
        places = [asked_in_order.index(word) for word in ("slow first", "two", "three", "four", "five")]
        assert places == sorted(places)
        assert not any("!help" in asked or "!status" in asked for asked in mind.shown)

    async def test_an_edit_into_a_command_is_not_shown_to_a_model(self, tmp_path):
        """A waiting question that is edited into a command is left out of the turn, and its author is told."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            one.server.say(ANN, "two")
            changed = one.server.say(ANN, "three")
            with anyio.fail_after(60):
                while len(await one.built.store.inbox.rows(states=[InboxState.READY])) < 2:
                    await anyio.sleep(0.02)
            edit = Amendment(kind="replace", native_id=changed, sender=ANN, text="!new")
            await one.hand_over(amendments=[edit])
            mind.gate.set()
            await settled(one, settled=3)
        assert "two" in mind.asked[1]
        assert not any("!new" in shown for shown in mind.shown)
        assert "edited into a command" in texts(one)[-1]

    async def test_an_edit_of_a_message_that_waits_alone_is_a_command(self, tmp_path):
        """What becomes a command before anybody has looked at it, and stands alone, is done as one."""
        mind = Mind()
        async with talking(tmp_path, mind, queue="each") as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            changed = one.server.say(ANN, "two")
            with anyio.fail_after(60):
                while not await one.built.store.inbox.rows(states=[InboxState.READY]):
                    await anyio.sleep(0.02)
            edit = Amendment(kind="replace", native_id=changed, sender=ANN, text="!help")
            await one.hand_over(amendments=[edit])
            mind.gate.set()
            await settled(one, settled=2)
        assert len(mind.asked) == 1
        assert "These are the commands" in texts(one)[-1]

    async def test_an_edit_of_a_command_into_a_question_is_a_question(self, tmp_path):
        """A command that is edited into something else before its turn is not done, but answered."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            (running,) = await one.built.store.inbox.rows(states=[InboxState.RUNNING])
            command = running.message.model_copy(update={"native_id": "edited", "text": "!new"})
            edit = Amendment(kind="replace", native_id="edited", sender=ANN, text="what is new?")
            await one.hand_over(command, amendments=[edit])
            await anyio.wait_all_tasks_blocked()
            assert len(mind.asked) == 1  # it is no command any more, and so it waits for the turn
            mind.gate.set()
            await settled(one, settled=2)
        assert "what is new?" in mind.asked[1]
        assert texts(one) == ["answer 1", "answer 2"]


@pytest.mark.parametrize("entry", ["@*:hs.test", "*@x.test", "*"])
async def test_nobody_is_let_in_by_a_pattern(tmp_path, entry):
    """It would be taken for a strange address, and said to be let in."""
    async with talking(tmp_path, Mind()) as one:
        told = (await asked(one, f"!allow {entry}")).text
    assert "is not one address" in told
    assert "Nothing was done" in told


@pytest.mark.parametrize("form", ["https://matrix.to/#/{}", "{}<mailto:{}>", "mailto:{}", "<{}>"])
async def test_somebody_is_let_in_by_the_link_that_a_program_makes_of_the_address(tmp_path, form):
    """The link itself was said to be let in. The control is a link that is no address."""
    async with talking(tmp_path, Mind(), allow_from={"matrix": (BOB,)}) as one:
        told = (await asked(one, f"!allow {form.format(EVE, EVE)}")).text
        other = (await asked(one, "!allow https://hs.test/@eve")).text
    assert told.startswith(f"`{EVE}` may write to me now")
    assert "Nothing was done" in other


async def test_somebody_is_let_in_by_the_name_of_a_listed_message(tmp_path):
    """A name that they gave themselves lets nobody in, and is answered with the addresses that it may mean."""
    async with talking(tmp_path, Mind(), allow_from={"matrix": (BOB,)}) as one:
        one.server.say(EVE, "a heron")
        await settled(one, quarantined=1)
        ((row, *_),) = [await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])]
        for command in ("!allow eve", "!allow m9999", f"!allow m{row.id}"):
            await asked(one, command)
        with anyio.fail_after(60):  # the owner is told of the refused message meanwhile
            while not any(told.startswith(f"`{EVE}` may write to me now") for told in texts(one)):
                await anyio.sleep(0.02)
        alike, none, *_ = (told for told in texts(one) if "Nothing was done" in told)
    assert alike == f"`eve` is no address; perhaps you mean `{EVE}`. Nothing was done."
    assert "m9999" in none


async def test_who_is_let_in_is_answered_as_they_say_it_now(tmp_path):
    """The edit of a message that was kept counts from then on, and what was deleted is not answered."""
    mind = Mind()
    async with talking(tmp_path, mind, allow_from={"matrix": (BOB,)}) as one:
        edited, deleted = one.server.say(EVE, "a heron"), one.server.say(EVE, "a stork")
        await settled(one, quarantined=2)
        change = Amendment(kind="replace", native_id=edited, sender=EVE, text="a swan")
        gone = Amendment(kind="withdraw", native_id=deleted, sender=EVE)
        await one.hand_over(amendments=[change, gone])
        await asked(one, f"!allow {EVE}")
        await one.server.answers(1, conversation=f"dm-{EVE}")
    assert ["swan" in each for each in mind.asked] == [True]
    assert not any("heron" in each or "stork" in each for each in mind.asked)
