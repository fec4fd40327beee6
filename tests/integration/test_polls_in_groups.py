"""A poll in a group at a real homeserver: whose votes count, who may end it, and what the next question knows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.doubles.agent import ModelScript
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.running_gateway import connected

pytestmark = [pytest.mark.integration]
KIND, WORDS = "org.matrix.msc3381.poll", "org.matrix.msc1767.text"


class Group:
    """A room with the bot in it, and polls there."""

    def __init__(self, room: str) -> None:
        self.room = room

    async def start(self, who: MatrixPeer, question: str) -> str:
        answers = [{"id": "a", WORDS: "six"}, {"id": "b", WORDS: "seven"}]
        content = {f"{KIND}.start": {"question": {WORDS: question}, "answers": answers}, WORDS: question}
        return await call(who.send_event, self.room, f"{KIND}.start", content)

    async def vote(self, who: MatrixPeer, poll: str, choice: str) -> None:
        await self._about(who, poll, "response", {"answers": [choice]})

    async def end(self, who: MatrixPeer, poll: str) -> None:
        await self._about(who, poll, "end", {})

    async def _about(self, who: MatrixPeer, poll: str, what: str, content: dict[str, object]) -> None:
        about = {"m.relates_to": {"rel_type": "m.reference", "event_id": poll}, f"{KIND}.{what}": content}
        await call(who.send_event, self.room, f"{KIND}.{what}", about)


@pytest.mark.parametrize("author", ["owner", "guest", "stranger"])
async def test_whose_votes_count_and_what_is_known_of_them(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
    author: str,
) -> None:
    """
    Everybody in the room has one vote, the last before the end; only who asked, or a moderator, ends it. The next
    question knows the counts, and nobody's vote; of the poll of somebody whom the bot does not hear it knows nothing.
    """
    bot, ann = fresh_credentials("bot"), fresh_user("ann")
    bob, eve = fresh_user("bob"), fresh_user("eve")
    by = {"owner": ann, "guest": bob, "stranger": eve}[author]
    async with open_house(
        synapse.url, bot, tmp_path, model=ModelScript("fine", "fine"), owner=ann, allow=[bob]
    ) as there:
        room = await there.room(ann, bob, eve, direct=False)
        group = Group(room)
        poll = await group.start(by, "When?")
        for who, choice in ((ann, "a"), (bob, "b"), (eve, "b"), (ann, "b"), (bob, "unknown"), (bob, "a")):
            await group.vote(who, poll, choice)
        other = bob if by is not bob else eve
        await group.end(other, poll)
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        await call(ann.send, room, "so far?", **mention)
        await there.answers(ann, room, 1)
        so_far = there.model.requests[-1][-1].content
        await group.end(by, poll)
        await group.vote(ann, poll, "a")
        await call(ann.send, room, "and now?", **mention)
        await there.answers(ann, room, 2)
        asked = len(there.model.requests)
        known = [each.content for each in there.model.requests[-1]]
    assert "has ended" not in so_far
    assert asked == 2, "nobody answers a poll in a group"
    told = sum(each.count("[The poll “When?” has ended. Votes: seven: 2, six: 1]") for each in known)
    assert told == (author != "stranger"), json.dumps(known, ensure_ascii=False)
    assert sum(each.count("has ended") for each in known) == told


async def test_a_poll_that_ended_right_before_the_question_is_known_to_it(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """Both come in one answer of the homeserver: the bot was away."""
    bot, ann, bob = fresh_credentials("bot"), fresh_user("ann"), fresh_user("bob")
    mention = {"m.mentions": {"user_ids": [bot.user_id]}}
    model = ModelScript("fine", "fine")
    async with open_house(synapse.url, bot, tmp_path, model=model, owner=ann, allow=[bob]) as there:
        room = await there.room(ann, bob, direct=False)
        group = Group(room)
        poll = await group.start(ann, "When?")
        await group.vote(bob, poll, "b")
        await call(ann.send, room, "so far?", **mention)
        await there.answers(ann, room, 1)
    await group.end(ann, poll)
    await call(ann.send, room, "and now?", **mention)
    async with open_house(synapse.url, bot, tmp_path, model=model, owner=ann, allow=[bob]) as there:
        await there.answers(ann, room, 2)
    known = "\n".join(each.content for each in model.requests[-1])
    assert known.count("[The poll “When?” has ended. Votes: seven: 1]") == 1


async def test_the_result_of_a_poll_is_the_first_that_is_heard_after_a_restart(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """A room of two is known as such although nothing was written in it since then."""
    bot, ann = fresh_credentials("bot"), fresh_user("ann")
    model = ModelScript("fine", "fine")
    async with open_house(synapse.url, bot, tmp_path, model=model, owner=ann) as there:
        room = await there.room(ann)
        group = Group(room)
        poll = await group.start(ann, "When?")
        await there.answers(ann, room, 1)
        await group.vote(ann, poll, "b")
    await group.end(ann, poll)
    async with open_house(synapse.url, bot, tmp_path, model=model, owner=ann) as there:
        await connected(there.built, "matrix")
        await call(ann.send, room, "and now?")
        await there.answers(ann, room, 2)
    known = "\n".join(each.content for each in model.requests[-1])
    assert known.count("[The poll “When?” has ended. Votes: seven: 1]") == 1
