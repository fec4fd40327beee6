"""Edits and deletions by people through the whole gateway: while the model works, and after the answer."""

from __future__ import annotations

import anyio
import pytest

from agent_core.messages import Amendment, SessionKey
from tests.integration.command_world import ANN, BOB, DM, Mind, asked, settled, talking, texts
from tests.integration.gateway_world import Scenario

pytestmark = pytest.mark.timeout(1200, func_only=True)


async def amend(one: Scenario, native_id: str, text: str | None = None, *, sender: str = ANN) -> None:
    kind = "withdraw" if text is None else "replace"
    change = Amendment(kind=kind, native_id=native_id, sender=sender, text=text or "")
    await one.hand_over(amendments=[change])


async def test_the_newest_text_is_answered_once(tmp_path):
    """Edited while the model works: it is asked again, and the old answer is never sent."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        edited = one.server.say(ANN, "slow heron")
        await mind.thinking.wait()
        await amend(one, edited, "stork", sender=BOB)
        await amend(one, edited, "swan")
        await settled(one, settled=1)
        told = texts(one)
    assert mind.cut_off == 1
    assert len(told) == 1
    assert [("swan" in each, "heron" in each) for each in mind.asked] == [(False, True), (True, False)]


async def test_a_correction_is_known_to_the_next_question(tmp_path):
    """Edited after its answer: nobody is answered again, and the next prompt has both texts."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        edited = one.server.say(ANN, "a table for four")
        await settled(one, settled=1)
        await amend(one, edited, "a table for five", sender=BOB)
        await amend(one, edited, "a table for six")
        await settled(one, settled=2)
        await asked(one, "how many?")
        assert len(texts(one)) == 2
    assert "corrected: a table for four]" in mind.shown[-1]
    assert ("a table for six" in mind.shown[-1], "for five" in mind.shown[-1]) == (True, False)


@pytest.mark.parametrize(
    "said", ["!remind tomorow at 9 milk", "!remind tomorrow at 9 mlik", "remind tomorrow at 9 milk"]
)
async def test_an_answered_message_that_becomes_a_command_is_told_to_be_sent_again(tmp_path, said):
    """A command that was refused, one that was done, and a question: nothing is done, nor left without a word."""
    async with talking(tmp_path, Mind()) as one:
        edited = one.server.say(ANN, said)
        await settled(one, settled=1)
        jobs = await one.built.store.jobs.jobs()
        await amend(one, edited, "!remind tomorrow at 9 milk")
        await settled(one, settled=2)
        assert texts(one)[1:] == [
            (
                "I do not run a command again when its message is edited, and what was done stays. Please send it as "
                "a separate message."
            )
        ]
        assert await one.built.store.jobs.jobs() == jobs
        await asked(one, "how many?")


async def test_a_deleted_question_is_shown_to_no_model(tmp_path):
    """Deleted after its answer: neither it nor its correction nor its answer is in the next prompt."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        await asked(one, "a crane")
        deleted = one.server.say(ANN, "a heron")
        await settled(one, settled=2)
        await amend(one, deleted, "a stork")
        await settled(one, settled=3)
        await amend(one, deleted, sender=BOB)
        await asked(one, "first?")
        before = mind.shown[-1]
        await amend(one, deleted)
        await settled(one, settled=5)
        await asked(one, "second?")
        tail = await one.built.memory.load_history(str(SessionKey("matrix", DM)))
        retried = await asked(one, "!undo")
        assert len(texts(one)) == 5
    assert "heron" in before
    shown = mind.shown[-1]
    assert ("crane" in shown, "heron" in shown, "stork" in shown) == (True, False, False)
    assert len([each for each in tail.messages if each.undoes]) == 1
    assert "second?" in retried.text


async def test_an_edit_survives_a_death_of_the_process(tmp_path):
    """The text is stored with the edit: the next life answers it, once."""
    mind, again = Mind(), Mind()
    async with talking(tmp_path, mind) as one:
        edited = one.server.say(ANN, "slow heron")
        await mind.thinking.wait()
        mind.away = True
        await amend(one, edited, "swan")
        server = one.server
    assert mind.cut_off == 1
    async with talking(tmp_path, again, server=server) as one:
        with anyio.fail_after(60):
            await one.server.answers(1, conversation=f"dm-{ANN}", within_s=60)
        assert len(texts(one)) == 1
    assert ["swan" in each for each in again.asked] == [True]


async def test_a_deleted_message_of_several_is_not_looked_up(tmp_path):
    """Others were answered with it, so its turn stays; no later prompt of another conversation has its words."""
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        one.server.say(ANN, "slow start")
        await mind.thinking.wait()
        deleted = one.server.say(ANN, "the secret flamingo lives in Zurich")
        one.server.say(ANN, "the parrot lives in Berlin")
        await settled_waiting(one, ready=2)
        mind.gate.set()
        await settled(one, settled=3)
        before = await asked_anew(one, mind, "where lives the flamingo?")
        await amend(one, deleted)
        await asked_anew(one, mind, "is there news?")
        after = [await asked_anew(one, mind, f"where lives the {bird}?") for bird in ("flamingo", "parrot")]
    assert "secret flamingo" in before
    assert not any("secret flamingo" in each for each in after)
    assert "in Berlin" in after[-1]


async def asked_anew(one: Scenario, mind: Mind, text: str) -> str:
    """Ask in a conversation that begins anew; return what the model was shown."""
    await asked(one, "!new")
    await asked(one, text)
    return mind.shown[-1]


async def settled_waiting(one: Scenario, *, ready: int) -> None:
    """Wait until so many messages wait behind a running turn."""
    with anyio.fail_after(60):
        while (await one.inbox()).get("ready", 0) != ready:
            await anyio.sleep(0.02)
