"""What events mean for a conversation, against a scripted homeserver: edits, talk, threads, rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import Amendment, Background, InboundMessage, SessionKey
from channels.base import PlaceRules
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.config import MatrixConfig
from channels.matrix.events.edits import EarlyEdits, read_edit, redacts
from channels.matrix.events.group_context import GroupContext
from channels.matrix.events.inbound_events import AUTHOR, MARK, BotIdentity, Skip, read_event
from channels.matrix.events.matrix_threads import SHARED, place_of, relation_of, root_of
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.receive.reply_context import read_plain_event
from tests.clock import EPOCH
from tests.doubles.homeserver import text
from tests.scripted_rooms import CAROL, MALLORY, MENTION, Desk, edit, redaction
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, DIRECT, GROUP, JSON, ROOM, rooms_with


# ── edits and redactions ──
async def test_an_edit_is_an_amendment_with_its_own_sender():
    """Never a message, whoever made it: the store compares the senders."""
    desk = Desk()
    await desk.read(text("$1", "first"))
    found = [await desk.read(edit("$1", "newer", sender)) for sender in (ALICE, CAROL, MALLORY)]

    assert found == [
        Amendment(kind="replace", native_id="$1", sender=ALICE, text="newer"),
        Amendment(kind="replace", native_id="$1", sender=CAROL, text="newer"),
        Skip("edit"),
    ]


async def test_an_edit_before_its_message_is_not_lost():
    """The message is taken as it was edited, if by its sender; the fall-back with its star is never seen."""
    desk = Desk()
    await desk.read(edit("$1", "newest"))
    await desk.read(edit("$2", "forged", MALLORY))
    found = [await desk.read(text(event_id, "old")) for event_id in ("$1", "$2", "$1")]

    assert [message.text for message in found] == ["newest", "old", "old"]


async def test_an_edit_that_the_server_bundles_counts():
    """After an absence, or when a key came late: the newest text, decrypted if need be; not that of others."""

    def bundled(edit_event):
        return {**text("$1", "old"), "unsigned": {"m.relations": {"m.replace": edit_event}}}

    secret = {"type": "m.room.encrypted", "sender": ALICE, "content": {"ciphertext": "x"}}

    def decrypt(_room, event):
        return edit("$1", "secret") if event is secret else read_plain_event(_room, event)

    desk = Desk(decrypt=decrypt)
    events = [edit("$1", "newer"), edit("$1", "forged", MALLORY), secret, {"sender": ALICE}, {"x": 1}, 7]
    assert [(await desk.read(bundled(event))).text for event in events] == [
        "newer",
        "old",
        "secret",
        "old",
        "old",
        "old",
    ]


async def test_an_edit_that_adds_the_mention_is_a_question():
    """Once, below what was said; not of somebody else, not of what was asked already, and not without the mention."""
    desk = Desk(rooms_with(ALICE, CAROL))
    for event_id, more in (("$2", MENTION), ("$1", {}), ("$3", {})):
        await desk.read(
            {**text(event_id, "when?"), "content": {**text(event_id, "when?")["content"], **more}}
        )

    async def edited(event_id, sender=ALICE, **more):
        event = edit(event_id, "when today?", sender)
        event["content"]["m.new_content"] = {**event["content"]["m.new_content"], **more}
        return await desk.read(event)

    for found in (await edited("$1", CAROL, **MENTION), await edited("$1"), await edited("$2", **MENTION)):
        assert isinstance(found, Amendment)
    asked = await edited("$1", **MENTION)
    assert (asked.text, asked.addressed, asked.context.route["event_id"]) == ("when today?", True, "$1")
    assert asked.native_id != "$1"
    assert [line.text for line in asked.background] == ["when?"], "the other line, and not its own"
    assert isinstance(await edited("$1", **MENTION), Amendment)


async def test_an_edit_after_a_restart_is_a_question():
    """The store remembers who said what to others; not of somebody else, and with a text that came since without the mention."""
    desk = Desk(rooms_with(ALICE, CAROL))
    said = await desk.read(text("$1", "when?"))
    await desk.inbox.accept([said])
    again = Desk(rooms_with(ALICE, CAROL))
    again.inbox.accepted += desk.inbox.accepted
    first = edit("$1", "and when?")
    assert isinstance(await again.read(first), Amendment)
    named, forged = edit("$1", "when today?"), edit("$1", "when today?", CAROL)
    for each in (named, forged):
        each["content"]["m.new_content"] |= MENTION
    assert isinstance(await again.read(forged), Amendment)
    asked = await again.read(named)
    assert (asked.text, asked.addressed, asked.context.route["event_id"]) == ("when today?", True, "$1")
    assert asked.session == said.session
    assert asked.native_id == "$1 asked"


async def test_an_edit_says_if_it_names_the_bot():
    """What answers everything in a room must not be silent about what names it by now."""
    desk = Desk(rooms_with(ALICE, CAROL))
    named = edit("$1", "when today?")
    named["content"]["m.new_content"] |= MENTION
    assert [(await desk.read(each)).names_bot for each in (named, edit("$1", "when?"))] == [True, False]


@pytest.mark.parametrize("where", ["content", "top"])
async def test_a_redaction_withdraws_for_the_sender(where):
    """In both shapes of the event; a moderator's counts as the sender's own, our own and that of others is none."""
    registry = rooms_with(ALICE, CAROL, MALLORY)
    desk = Desk(registry)
    await desk.read(text("$1"))
    assert await desk.read(redaction("$1", MALLORY, where=where)) == Skip("no_message")
    levels = {"type": "m.room.power_levels", "state_key": "", "content": {"users": {MALLORY: 50}}}
    registry.get(ROOM).state(levels)
    by_alice, by_moderator = [
        await desk.read(redaction("$1", sender, where=where)) for sender in (ALICE, MALLORY)
    ]
    unknown = await desk.read(redaction("$unknown", CAROL, where=where))

    assert by_alice == by_moderator == Amendment(kind="withdraw", native_id="$1", sender=ALICE)
    assert unknown.sender == CAROL
    assert await desk.read(redaction("$unknown", MALLORY, where=where)) == Skip("no_message")
    assert await desk.read(redaction("$1", BOT, where=where)) == Skip("no_message")
    assert await desk.read(redaction("no id", where=where)) == Skip("no_message")


async def test_memory_of_edits_is_bounded():
    """However many edits of unknown messages a stranger writes, only the newest are kept."""
    early = EarlyEdits()
    for number in range(1000):
        early.keep(ROOM, Amendment(kind="replace", native_id=f"${number}", sender=ALICE, text="x"))

    kept = [number for number in range(1000) if early.take(ROOM, f"${number}", ALICE)]
    assert kept == list(range(800, 1000))


# ── talk ──
async def test_talk_is_kept_by_setting():
    """Of the people of the setting, as much as it says, and only until somebody asks."""
    for settings, wanted in [
        ({}, ["one", "two"]),
        ({"senders": "everyone"}, ["one", "psst", "two"]),
        ({"messages": 1}, ["two"]),
        ({"messages": 0}, []),
    ]:
        desk = Desk(GROUP, group_context=settings)
        for number, (sender, said) in enumerate([(ALICE, "one"), (MALLORY, "psst"), (CAROL, "two")]):
            await desk.read(text(f"${number}", said, sender))
        question = await desk.read(text("$q", "and?", **MENTION))
        again = await desk.read(text("$q2", "and?", **MENTION))
        assert [line.text for line in question.background] == wanted
        assert again.background == ()


async def test_a_place_that_was_left_is_forgotten():
    """What was said in a room is not kept when the bot is put out of it."""
    desk = Desk(GROUP)
    await desk.read(text("$1", "one"))
    desk.conversation.forget_room(ROOM)
    assert (await desk.read(text("$q", "and?", **MENTION))).background == ()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.text(max_size=3000)), max_size=60),
    st.integers(0, 10),
    st.integers(200, 5000),
)
def test_talk_is_bounded(lines, messages, chars):
    """However much is said: never more lines or characters than allowed, in order, the newest."""
    talk = GroupContext(messages=messages, chars=chars)
    for number, (place, said) in enumerate(lines):
        talk.remember((ROOM, str(place)), f"${number}", Background(kind="talk", sender=ALICE, text=said))
    for place in range(6):
        told = talk.lines_for((ROOM, str(place)), ALICE, keep=False)
        assert len(told) <= messages
        assert sum(len(line.text) for line in told) <= chars
        assert all(len(line.text) <= 1000 for line in told)
        assert talk.lines_for((ROOM, str(place)), ALICE, keep=True) == ()


# ── threads ──
@given(st.booleans(), st.sampled_from([None, "$root"]), st.sampled_from(["off", "follow", "always"]))
def test_no_conversation_of_two_is_one_of_several(direct, root, mode):
    """Whatever the setting: a private conversation and a shared one never have the same session."""
    place = place_of(channel="matrix", room_id=ROOM, event_id="$1", root=root, direct=direct, mode=mode)
    other = place_of(channel="matrix", room_id=ROOM, event_id="$1", root=root, direct=not direct, mode=mode)

    assert place.session != other.session
    assert (place.session.thread or "").startswith(SHARED) is not direct
    assert place.thread == (root or ("$1" if mode == "always" and not direct else None))


def test_keys_without_threads_are_as_ever():
    """What was said before there were threads goes on in the same session."""
    for mode in ("off", "follow"):
        places = [
            place_of(channel="matrix", room_id=ROOM, event_id="$1", root=None, direct=direct, mode=mode)
            for direct in (True, False)
        ]
        assert [one.session for one in places] == [
            SessionKey("matrix", ROOM),
            SessionKey("matrix", ROOM, "shared"),
        ]


@pytest.mark.parametrize("root", ["no id", "$a@b:hs", "$" + "x" * 300, None, 7])
def test_a_root_that_is_none_is_no_thread(root):
    """Nobody makes a session by inventing an id that is not one."""
    assert root_of({"m.relates_to": {"rel_type": "m.thread", "event_id": root}}) is None


def test_the_shape_of_a_relation():
    """A thread's fall-back is marked as one; its root is never quoted inside of it."""
    assert relation_of("$1", None, points_back=False) == {}
    assert relation_of("$1", None, points_back=True) == {"m.in_reply_to": {"event_id": "$1"}}
    for event_id, points_back, falls_back in [
        ("$1", True, False),
        ("$1", False, True),
        ("$root", True, True),
    ]:
        relation = relation_of(event_id, "$root", points_back=points_back)
        assert relation["rel_type"] == "m.thread"
        assert relation["is_falling_back"] is falls_back
        assert relation["m.in_reply_to"] == {"event_id": event_id}


# ── robots and rules ──
async def test_robots_lead_to_nothing():
    """A mark of a squidbot, a pattern of the settings, a notice: none is a message or an edit."""
    desk = Desk(ignore_senders=["@_irc_*:*"])
    assert await desk.read(text("$1", **{MARK: "sq1", AUTHOR: ALICE})) == Skip("robot")
    passed_on = await desk.read(text("$4", "look what it said", **{MARK: "sq1", AUTHOR: "@another:hs.test"}))
    assert passed_on.text == "look what it said"
    assert await desk.read(text("$2", sender="@_irc_joe:hs.test")) == Skip("ignored_sender")
    assert await desk.read(edit("$2", "x", sender="@_irc_joe:hs.test")) == Skip("ignored_sender")
    assert isinstance(await desk.read(text("$3")), InboundMessage)


async def test_a_room_goes_on_under_the_rule_of_the_one_before():
    """An upgrade does not lift a rule, nor what a list of rooms says."""
    rules = RoomRules(
        MatrixConfig(
            homeserver="http://hs",
            user_id=BOT,
            password="pw",
            rooms={"!middle": {"policy": "off", "allow_from": []}},
        ),
        lambda room_id: "!first" if room_id in ("!first", "!middle", "!last") else room_id,
    )
    listed = BotIdentity(
        channel="matrix", user_id=BOT, group_policy="allowlist", group_allow_from=("!first",)
    )

    assert [rules.allows(room, ALICE) for room in ("!first", "!middle", "!last", "!else")] == [
        *(False, False, False),
        None,
    ]
    assert "!else" not in rules.me_in("!else", listed, ALICE).group_allow_from
    follows = RoomRules(
        MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw"), lambda _room: "!first"
    )
    assert "!last" in follows.me_in("!last", listed, ALICE).group_allow_from


async def test_an_alias_that_cannot_be_found_leaves_the_room_as_it_is():
    """The rule of an alias counts when its room is known, and the start does not fail without."""
    rules = {"#here:hs.test": {"policy": "open"}, "#gone:hs.test": {"policy": "open"}}
    desk = Desk(GROUP, rooms=rules)
    assert not (await desk.read(text("$1"))).addressed
    desk.server.on("GET", "/directory/room/%23here", HttpAnswer(200, {"room_id": ROOM}))
    desk.server.on("GET", "/directory/room/%23gone", LinkBroken("cut", maybe_taken=False))
    await desk.conversation.start()
    assert (await desk.read(text("$2"))).addressed


@given(JSON, JSON)
async def test_nothing_that_strangers_write_raises(event, content):
    """Any JSON in any place is a message, an amendment or a reason; no exception."""
    desk = Desk(GROUP, threads="always")
    kinds = ("m.room.message", "m.room.redaction", "m.reaction")
    for candidate in (
        *({**text("$1"), "type": kind, "content": content} for kind in kinds),
        {**text("$1"), "unsigned": {"m.relations": content}},
        {**text("$1"), "content": {"m.new_content": content, "m.relates_to": event}},
        event if isinstance(event, dict) else {},
    ):
        found = await desk.read(candidate)
        assert isinstance(found, InboundMessage | Amendment | Skip)
    for candidate in (event, content):
        if isinstance(candidate, dict):
            read_edit(candidate)
            redacts(candidate, "")


async def test_a_rule_of_a_room_counts_for_everything_in_it():
    """Whoever is only allowed there is heard there: questions, reactions, talk and waiting for keys."""
    desk = Desk(GROUP, rooms={ROOM: {"allow_from": [MALLORY]}})
    desk.inbox.delivered["$ours"] = "out-1"
    relation = {"m.relates_to": {"rel_type": "m.annotation", "event_id": "$ours", "key": "x"}}
    mark = {**text("$r", sender=MALLORY, **relation), "type": "m.reaction"}

    assert desk.conversation.rules.is_context(ROOM, MALLORY)
    assert not desk.conversation.rules.is_context(ROOM, ALICE)
    assert not desk.conversation.rules.is_context("!other", MALLORY)
    assert (await desk.read(mark)).context.allowed_here is True
    assert (await desk.read(text("$1", sender=ALICE, **MENTION))).context.allowed_here is False
    assert (await desk.read({**mark, "sender": ALICE})) == Skip("no_message")


# ── threads under something of ours, files in talk ──
def in_thread(event_id, root, sender=ALICE):
    fallback = {"m.in_reply_to": {"event_id": "$other"}, "is_falling_back": True}
    return text(
        event_id,
        "and then?",
        sender,
        **{"m.relates_to": {"rel_type": "m.thread", "event_id": root, **fallback}},
    )


async def test_a_thread_under_a_message_of_ours_is_meant_for_us():
    """For people who may talk to the bot, and if replies count as mentions; other threads are talk."""
    desk = Desk(GROUP, threads="follow")
    desk.inbox.delivered["$ours"] = "out-1"
    found = [
        await desk.read(in_thread("$1", "$ours")),
        await desk.read(in_thread("$2", "$else")),
        await desk.read(in_thread("$3", "$ours", MALLORY)),
    ]
    assert [message.addressed for message in found] == [True, False, False]
    other = Desk(GROUP, threads="follow", mention_by_reply=False)
    other.inbox.delivered["$ours"] = "out-1"
    assert (await other.read(in_thread("$1", "$ours"))).addressed is False


def picture(event_id, sender=ALICE):
    return text(
        event_id, f"{event_id[1:]}.png", sender, msgtype="m.image", url=f"mxc://hs.test/{event_id[1:]}"
    )


async def test_a_question_brings_the_newest_file_of_the_talk_before():
    """Once, of people who may talk to the bot, and if nothing of its own comes along; not what was taken back."""
    desk = Desk(GROUP)
    for event in (
        picture("$a", CAROL),
        picture("$b"),
        picture("$c"),
        picture("$x", MALLORY),
        redaction("$c"),
    ):
        await desk.read(event)
    first = await desk.read(text("$1", "what is this?", **MENTION))
    second = await desk.read(text("$2", "and now?", **MENTION))

    assert first.context.route["media"]["content"]["url"] == "mxc://hs.test/b"
    assert first.text == "what is this?"
    assert [line.text for line in first.background] == [
        '[A picture is attached: "a.png"]',
        '[A picture is attached: "b.png"]',
    ]
    assert "media" not in second.context.route


async def test_a_file_from_before_somebody_came_is_not_theirs_to_ask_about():
    """Like the words of that time."""
    desk = Desk(GROUP)
    await desk.read(picture("$a"))
    desk.conversation._talk.note_join(ROOM, CAROL)
    hers = await desk.read(text("$1", "what is this?", CAROL, **MENTION))
    his = await desk.read(text("$2", "what is this?", **MENTION))

    assert "media" not in hers.context.route
    assert "media" in his.context.route


async def test_a_room_has_the_tools_of_its_rule_as_soon_as_it_is_known():
    """Before that it has none, because it may be that room; without such a rule it always has all."""
    rules = {"#here:hs.test": {"tools": ["web_search"], "language": "de", "persona": " Be brief. "}}
    desk = Desk(GROUP, rooms=rules)
    assert desk.conversation.rules.place_rules(ROOM) == PlaceRules(tools=())
    desk.server.on("GET", "/directory/room/%23here", LinkBroken("cut", maybe_taken=False))
    await desk.conversation.start()
    assert desk.conversation.rules.place_rules(ROOM) == PlaceRules(tools=())
    desk.server.on("GET", "/directory/room/%23here", HttpAnswer(200, {"room_id": ROOM}))
    await desk.conversation.start()
    assert desk.conversation.rules.place_rules(ROOM) == PlaceRules(("web_search",), "de", "Be brief.")
    assert desk.conversation.rules.place_rules("!else:hs.test") == PlaceRules()
    assert Desk(GROUP).conversation.rules.place_rules(ROOM) == PlaceRules()


def test_what_cannot_be_read_is_said_in_the_language_of_the_room_or_of_its_sender():
    config = MatrixConfig(
        homeserver="http://hs", user_id=BOT, password="pw", rooms={"!german:hs.test": {"language": "de"}}
    )
    rules = RoomRules(config, str, language_of={ALICE: "de"}.get)
    me = BotIdentity(channel="matrix", user_id=BOT)
    assert (
        rules.me_in(ROOM, me, ALICE).language == rules.me_in("!german:hs.test", me, "@x:y").language == "de"
    )
    assert not rules.me_in(ROOM, me, "@x:y").language
    odd = text("$1", " ", msgtype="org.example.dice")
    told = {
        language: read_event(odd, ROOM, me=replace(me, language=language), rooms=DIRECT, now=EPOCH)
        for language in ("", "de")
    }
    assert told[""].context.unreadable.startswith("I cannot read a message")
    assert told["de"].context.unreadable.startswith("Ich kann")
