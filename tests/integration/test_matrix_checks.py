"""
What a person sees of a whole gateway, in rooms of version 11 and 12, in clear and encrypted.

One conversation per kind of room goes through it all, because each start costs seconds: question and answer, typing
and the receipt, a thread, an edit, a withdrawal, a notice. Details have tests of their own.
"""

from __future__ import annotations

import os
import time
from urllib.parse import quote

import anyio
import pytest

from devservers import MatrixPeer
from tests.doubles.agent import call as use
from tests.integration.matrix_bot import Bot, call
from tests.integration.matrix_person import KINDS, Person, room_of_kind
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_matrix_gateway import house  # noqa: F401 - a fixture
from tests.integration.test_tool_approval import Guarded

OLD = int(os.environ.get("SQUIDBOT_OLD_MESSAGES", "240"))
"""How many old messages; thousands take longer to make than the suite has."""


def approved(texts):
    """Whether it was said that a call is approved, by the first decision or a later one."""
    said = ("is approved: I use `write_down`.", "was approved before. This changes nothing.")
    return any(text.endswith(said) for text in texts)


@pytest.mark.parametrize("version", ["11", "12"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_conversation_in_every_kind_of_room(
    house,  # noqa: F811 - the fixture
    synapse,
    fresh_credentials,
    tmp_path,
    version,
    encrypted,
):
    """
    M1, M2, M6, M7, M13, M27, M28 and M30: answered once each, marked read, in its thread, approved, and nothing
    beyond.
    """
    secret = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    tool = Guarded()
    edited = ([30.0, "never"], "edited")
    script = ([1.5, "one"], "two", *edited, [30.0, "never"], "last", use("write_down", what="it"))
    async with house(*script, "after all", allow=[secret], tools=[tool]) as there:
        room = await room_of_kind(secret, there.user_id, version, encrypted=encrypted)
        person = Person(secret, room, there.user_id, encrypted=encrypted)

        # M1, M2: typing while it is worked on, gone soon after the answer, and the question marked as read
        question = await person.say("first")
        with anyio.fail_after(60):
            while (await person.ephemeral("m.typing")).get("user_ids") != [there.user_id]:
                await anyio.sleep(0.05)
        await person.until_heard(1)
        with anyio.fail_after(60):
            while (await person.ephemeral("m.typing")).get("user_ids"):
                await anyio.sleep(0.05)
            while there.user_id not in (await person.ephemeral("m.receipt")).get(question, {}).get(
                "m.read", {}
            ):
                await anyio.sleep(0.05)

        # M6: in a thread
        thread = {"rel_type": "m.thread", "event_id": question, "is_falling_back": True}
        await person.say("second", **{"m.relates_to": thread})
        said = await person.until_heard(2)
        assert (said[1][1].get("rel_type"), said[1][1].get("event_id")) == ("m.thread", question)

        # M7: edited while it is worked on
        third = await person.say("thrid")
        await there.asked(3)
        edit = {"m.new_content": {"msgtype": "m.text", "body": "third"}}
        await person.say("* third", **edit, **{"m.relates_to": {"rel_type": "m.replace", "event_id": third}})
        await person.until_heard(3)

        # M7: edited when it was answered long ago: nothing comes of it, as the count of questions shows
        edit = {"m.new_content": {"msgtype": "m.text", "body": "first of all"}}
        about = {"rel_type": "m.replace", "event_id": question}
        await person.say("* first of all", **edit, **{"m.relates_to": about})

        # M13: taken back while it is worked on; M28: a notice is no question
        fourth = await person.say("fourth")
        await there.asked(5)
        await call(secret.peer.call, "PUT", f"/rooms/{quote(room)}/redact/{quote(fourth)}/back", {})
        await person.say("a notice", msgtype="m.notice")
        await person.say("fifth")
        said = await person.until_heard(4)
        questions = await there.asked(6)

        # M27: a tool waits for the first reaction to the question about it
        await person.say("sixth")
        said = await person.until_heard(5)
        written = list(tool.written)
        for key in ("✅", "❌"):
            about = {"rel_type": "m.annotation", "event_id": person.events[-1], "key": key}
            await call(secret.peer.send_event, room, "m.reaction", {"m.relates_to": about})
        with anyio.fail_after(60):
            while not (
                "after all" in (texts := [text for _, _, text in await person.heard()]) and approved(texts)
            ):
                await anyio.sleep(0.1)

    secret.close()
    assert (written, tool.written) == ([], ["it"])
    assert all(text == "after all" or approved([text]) for text in texts[5:])
    assert [text for _, _, text in said[:4]] == ["one", "two", "edited", "last"]
    assert {kind for kind, _, _ in said} == {"m.room.encrypted" if encrypted else "m.room.message"}
    assert len(questions) == 6
    assert questions[-1].splitlines()[-1] == "fifth"


async def test_a_long_history_is_left_alone_at_the_first_start(synapse, fresh_credentials, tmp_path):
    """
    M32: whoever was in rooms long before its first start answers nothing of what was said there: rooms of each kind.
    """
    nia, credentials = (
        SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia"),
        fresh_credentials("bot"),
    )
    bot = Bot(credentials, synapse.url, tmp_path / "bot", allow_from=[nia.user_id])
    account = await call(MatrixPeer.of, synapse.url, credentials)
    begun = time.monotonic()
    people = []
    for version, encrypted in KINDS:
        room = await call(nia.peer.create_room, [bot.user_id], is_direct=True, room_version=version)
        if encrypted:
            body = {"algorithm": "m.megolm.v1.aes-sha2"}
            await call(nia.peer.call, "PUT", f"/rooms/{quote(room)}/state/m.room.encryption/", body)
        await call(account.join, room)
        people.append(Person(nia, room, bot.user_id, encrypted=encrypted))
    for person in people:
        for number in range(OLD // len(people)):
            await person.say(f"old {number}")
    print(f"{OLD} messages in {time.monotonic() - begun:.1f} s")
    async with bot.up():
        for person in people:
            await person.say("new")
        await bot.inbox.until_accepted(len(people), within_s=60)
    async with bot.up():
        for person in people:
            await person.say("newer")
        await bot.inbox.until_accepted(2 * len(people), within_s=60)
    nia.close()

    assert sorted(bot.inbox.texts) == ["new"] * 4 + ["newer"] * 4
    assert [one.text for one in bot.inbox.offered if one.text.startswith("old")] == []
    assert (
        bot.inbox.facts[-1]["waiting_for_keys"] == 0
    )  # nobody waits for keys of what was said before it was there
