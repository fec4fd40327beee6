"""`!undo` and `!retry`: what the model sees after them, who may, and what a real homeserver and a real mail server show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Amendment, SessionKey
from gateway.store.store_errors import StoreUnavailable
from gateway.turns.commit import TurnCommit
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, CID, DM, Mind, asked, settled, talking, texts
from tests.integration.gateway_world import Scenario
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.integration.test_approvals_by_mail import Harness, mail_server, text_of
from tests.integration.test_conversation_commands import in_group, say

__all__ = ["mail_server"]


async def marks(one: Scenario, session: str = f"matrix/{DM.replace(':', '%3a')}") -> list[str]:
    tail = await one.built.memory.load_history(str(SessionKey.parse(session)))
    return [each.undoes for each in tail.messages if each.undoes]


class TestUndo:
    async def test_once_and_twice(self, tmp_path):
        """The model sees neither question nor answer any more; the file has both; twice takes the one before."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            for word in ("alpha", "beta", "gamma"):
                await asked(one, word)
            first = await asked(one, "!undo")
            await asked(one, "delta")
            after_one = mind.shown[-1]
            await asked(one, "!undo")
            await asked(one, "!undo")
            await asked(one, "epsilon")
            after_three = mind.shown[-1]
            for _ in range(2):
                await asked(one, "!undo")
            nothing = await asked(one, "!undo")
            kept = await one.built.memory.load_segment(
                str(SessionKey("matrix", DM)), start=0, max_messages=100
            )
        assert "`gamma`" in first.text
        assert ("beta" in after_one, "gamma" in after_one, "answer 3" in after_one) == (True, False, False)
        assert ("alpha" in after_three, "beta" in after_three, "delta" in after_three) == (True, False, False)
        assert "no question here" in nothing.text
        assert {"alpha", "gamma", "answer 3"} <= {each.content.rpartition("\n")[2] for each in kept.messages}

    async def test_what_is_summarised_says_so(self, tmp_path):
        """Nothing behind the summary is left: it cannot be taken out of that."""
        async with talking(tmp_path, Mind()) as one:
            await asked(one, "alpha")
            session = str(SessionKey("matrix", DM))
            await one.built.handler.history.flush(SessionKey("matrix", DM))
            await one.built.memory.save_consolidation(session, summary="alpha was said", cursor=2)
            told = await asked(one, "!undo")
        assert "part of my summary" in told.text

    async def test_while_something_is_worked_on(self, tmp_path):
        """Neither command touches what waits for its answer."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "alpha")
            one.server.say(ANN, "slow beta")
            await mind.thinking.wait()
            mind.thinking = anyio.Event()
            undo, retry = await asked(one, "!undo"), await asked(one, "!retry")
            mind.gate.set()
            await settled(one, settled=4)
            assert await marks(one) == []
        assert "Nothing was done" in undo.text
        assert all("not answered yet" in each.text and "`!stop`" in each.text for each in (undo, retry))

    async def test_among_others_only_what_is_theirs(self, tmp_path):
        """H11: nobody takes back what another has asked, but for the owner and who moderates the room."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await say(one, in_group(BOB, "bob's heron", 1))
            others = await say(one, in_group(CID, "!undo", 2))
            retried = await say(one, in_group(CID, "!retry", 3))
            asked_so_far = len(mind.asked)
            own = await say(one, in_group(BOB, "!undo", 4))
            await say(one, in_group(CID, "cid's stork", 5))
            moderator = await say(one, in_group(BOB, "!undo", 6, moderator=True))
            await say(one, in_group(CID, "cid's swan", 7))
            owner = await say(one, in_group(ANN, "!undo", 8))
            await say(one, in_group(CID, "what is left?", 9))
        assert "not only yours" in others.text
        assert others.text == retried.text
        assert asked_so_far == 1
        assert "`" in own.text.partition("\n")[0]
        for told in (moderator, owner):  # whose words it was is not shown to whoever may not have seen them
            assert told.text.startswith("I no longer see the last question and its answer.")
        assert not any(word in mind.shown[-1] for word in ("heron", "stork", "swan"))

    async def test_a_summary_that_is_made_meanwhile_has_it_not(self, tmp_path):
        """Taken back while a model summarises it: that summary is thrown away; what is in it later is not taken back."""
        from agent_core.memory.manager import MemoryManager

        class Slow(StreamingModel):
            def __init__(self) -> None:
                self.seen: list[str] = []
                self.begun, self.go = anyio.Event(), anyio.Event()

            async def answer(self, messages, tools):
                self.seen.append(messages[-1].content)
                self.begun.set()
                await self.go.wait()
                yield "They spoke of birds."

        mind, slow = Mind(), Slow()
        async with talking(tmp_path, mind) as one:
            for word in ("alpha", "beta", "gamma"):
                await asked(one, word)
            session = str(SessionKey("matrix", DM))
            memory = one.built.memory
            manager = MemoryManager(memory, llm=slow, consolidation_threshold=2, keep_recent_ratio=0.5)
            results = []
            await one.built.handler.history.flush(SessionKey("matrix", DM))
            async with anyio.create_task_group() as tasks:

                async def consolidate() -> None:
                    results.append(await manager.consolidate_if_due(session))

                tasks.start_soon(consolidate)
                await slow.begun.wait()
                await asked(one, "!undo")
                await asked(one, "!undo")
                slow.go.set()
            thrown_away = await memory.load_consolidated_cursor(session)
            await manager.consolidate_if_due(session)
            cursor = await memory.load_consolidated_cursor(session)
        assert "beta" in slow.seen[0]
        assert (results[0].segments, thrown_away) == (0, 0)
        assert cursor > 0
        assert "alpha" in slow.seen[1]
        assert "beta" not in slow.seen[1]


class TestRetry:
    async def test_the_last_question_is_answered_anew(self, tmp_path):
        """One new answer to the same question, without the earlier one before the model's eyes; again and again."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "alpha")
            await asked(one, "beta")
            again = await asked(one, "!retry")
            shown = mind.shown[-1]
            third = await asked(one, "!retry")
            await settled(one, settled=6)
            seen = texts(one, ANN)
        assert (again.text, third.text) == ("answer 3", "answer 4")
        assert mind.asked[-1].endswith("beta")
        assert "answer 1" in shown
        assert "answer 2" not in shown
        assert seen == ["answer 1", "answer 2", "answer 3", "answer 4"]

    @pytest.mark.parametrize("times", [1, 2])
    async def test_a_copy_of_what_was_deleted_goes_with_it(self, tmp_path, times: int):
        """Asked anew, then deleted by its sender: no store, prompt or later `!retry` has its words; others' deletions change nothing."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            deleted = one.server.say(ANN, "a secret heron")
            await one.server.answers(1, conversation=DM)
            for _ in range(times):
                await asked(one, "!retry")
            for sender in (BOB, ANN):
                await one.hand_over(amendments=[Amendment(kind="withdraw", native_id=deleted, sender=sender)])
            count = len(mind.asked)
            refused = await asked(one, "!retry")
            await asked(one, "and now?")
            rows = await one.built.store.inbox.rows(limit=100)
        assert "withdrawn" in refused.text
        assert len(mind.asked) == count + 1
        assert "heron" not in mind.shown[-1]
        assert not any("heron" in row.message.model_dump_json() for row in rows)

    async def test_what_was_edited_since_is_asked_as_it_is_now(self, tmp_path):
        """Edited by its sender after its answer; an edit of somebody else is none."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:

            async def edit(native_id: str, text: str, sender: str = ANN) -> None:
                amendment = Amendment(kind="replace", native_id=native_id, sender=sender, text=text)
                await one.hand_over(amendments=[amendment])

            first = one.server.say(ANN, "alpha")
            await one.server.answers(1, conversation=DM)
            await edit(first, "mallory's words", BOB)
            await edit(first, "alpha, corrected")
            await asked(one, "!retry")
            after = mind.asked[-1]
        assert after.endswith("alpha, corrected")
        assert "mallory" not in after

    async def test_what_was_deleted_since_is_not_asked_anew(self, tmp_path):
        """Its sender has taken it back."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            first = one.server.say(ANN, "alpha")
            await one.server.answers(1, conversation=DM)
            gone = Amendment(kind="withdraw", native_id=first, sender=ANN)
            await one.hand_over(amendments=[gone])
            told = await asked(one, "!retry")
        assert "withdrawn that question" in told.text
        assert len(mind.asked) == 1

    async def test_a_question_that_failed_is_asked_anew(self, tmp_path):
        """After an apology there is nothing to take back, and still a question."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            nothing = await asked(one, "!retry")
            mind.tool = "no_such_tool"
            apology = await asked(one, "use the tool")
            mind.tool = ""
            again = await asked(one, "!retry")
        assert "no question here" in nothing.text
        assert "Sorry" in apology.text
        assert again.text.startswith("answer")

    @pytest.mark.parametrize("command", ["!undo", "!retry"])
    async def test_done_again_after_a_crash_it_is_done_once(self, tmp_path, command):
        """The end of the command is lost: no second line, no second question, no earlier exchange taken back."""
        complete, failures = TurnCommit.complete, [1]

        async def failing(self: TurnCommit, turn: Any, *given: Any, **named: Any) -> Any:
            if failures and turn.head.message.text == command:
                failures.pop()
                raise StoreUnavailable("lost")
            return await complete(self, turn, *given, **named)

        mind, server = Mind(), LoopbackServer()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TurnCommit, "complete", failing)
            async with talking(tmp_path, mind, server=server) as one:
                await asked(one, "alpha")
                await asked(one, "beta")
                told = await asked(one, command)
                await settled(one, settled=4 if command == "!retry" else 3)
                assert len(await marks(one)) == 1
                await asked(one, "gamma")
        assert failures == []
        assert told.text.startswith("answer 3" if command == "!retry" else "I no longer see")
        assert "alpha" in mind.shown[-1]
        assert ("beta" in mind.shown[-1]) == (command == "!retry")


async def test_on_a_real_homeserver_the_answer_is_edited(synapse, fresh_credentials, alice, tmp_path):
    """
    No new message: the earlier one reads otherwise, twice; and what was taken back the model does not see.

    One that has something below it is left, and the answer comes at the end.
    """
    answers = ["One.", "Two.", "Three.", "Four.", "Five."]
    async with open_house(synapse.url, fresh_credentials("bot"), tmp_path, *answers, owner=alice) as there:
        room = await there.room(alice)
        await call(alice.send, room, "how many?")
        await there.answers(alice, room, 1)
        for count in (2, 3):
            await call(alice.send, room, "!retry")
            await there.asked(count)
            with anyio.fail_after(60):
                while answers[count - 1] not in (seen := await there.seen(alice, room)):
                    await anyio.sleep(0.05)
            assert seen == [answers[count - 1]]
        events = [one for one in await call(alice.history, room) if one.sender == there.user_id]
        edited = [one.content["m.relates_to"]["event_id"] for one in events if "m.new_content" in one.content]
        await call(alice.send, room, "!undo")
        await there.answers(alice, room, 2)
        await call(alice.send, room, "and now?")
        await there.answers(alice, room, 3)
        shown = "\n".join(each.content for each in there.model.requests[-1])
        await call(alice.send, room, "!new")
        await there.answers(alice, room, 4)
        await call(alice.send, room, "!retry")
        below = await there.answers(alice, room, 5)
    assert below[2] == "Four."  # nobody looks at what stands above other answers
    assert below[-1] == "Five."
    assert edited == [events[0].event_id] * 2
    assert "how many?" not in shown
    assert "Three." not in shown


async def test_by_real_mail_the_answer_is_a_new_mail(mail_server, tmp_path: Path) -> None:
    """It is in the thread, and answers the mail that asked for it."""
    house = Harness(mail_server, 7, tmp_path)
    async with house.running():
        await house.write("owner", "good morning")
        (first,) = await house.mails("owner", lambda text: text.startswith("so:"))
        await house.write("owner", "!retry", to=first)
        both = await house.mails("owner", lambda text: text.startswith("so:"), count=2)
        await house.write("owner", "!undo", to=first)
        (told,) = await house.mails("owner", lambda text: "no longer see" in " ".join(text.split()))
    assert len(both) == 2
    assert both[1]["In-Reply-To"] != both[0]["In-Reply-To"]
    assert str(first["Message-ID"]) in str(both[1]["References"])
    assert "good morning" in " ".join(text_of(told).split())
