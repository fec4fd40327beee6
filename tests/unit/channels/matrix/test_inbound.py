"""From events to messages: what counts, what is skipped, who is meant."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent_core.messages import Audience, InboundMessage, SessionKey
from channels.matrix.events.inbound_events import BotIdentity, Skip, read_event
from channels.matrix.rooms.room_state import Rooms
from tests.clock import EPOCH
from tests.doubles.homeserver import member, text
from tests.rows import rows

BOT, ALICE, ROOM = "@bot:hs.test", "@alice:hs.test", "!room:hs.test"
ME = BotIdentity(channel="matrix", user_id=BOT, display_name="Squid Bot")


def rooms_with(*users, direct=False, encrypted=False):
    """A registry with one room."""
    state = [member(user, displayname=user[1:6]) for user in (BOT, *users)]
    if encrypted:
        state.append({"type": "m.room.encryption", "state_key": "", "content": {}})
    rooms = Rooms(BOT)
    joined = {
        "state": {"events": state},
        "summary": {"m.joined_member_count": len(users) + 1, "m.invited_member_count": 0},
    }
    sync = {"rooms": {"join": {ROOM: joined}}}
    if direct:
        sync["account_data"] = {"events": [{"type": "m.direct", "content": {ALICE: [ROOM]}}]}
    rooms.update(sync)
    return rooms


DIRECT = rooms_with(ALICE, direct=True)
GROUP = rooms_with(ALICE, "@carol:hs.test")


def read(event, rooms=DIRECT, me=ME):
    return read_event(event, ROOM, me=me, rooms=rooms, now=EPOCH)


def test_a_text_becomes_a_message():
    """Identity, session, sender and text; the sender's address is what the homeserver vouches for."""
    message = read(text("$1", "Hello **there**"))

    assert isinstance(message, InboundMessage)
    assert (message.native_id, message.text, message.account) == ("$1", "Hello **there**", BOT)
    assert message.session == SessionKey("matrix", ROOM)
    assert (message.sender.address, message.sender.name, message.sender.verified) == (ALICE, "alice", True)
    assert (message.audience, message.addressed) == (Audience.DIRECT, True)
    assert message.received_at == EPOCH
    assert message.context.route["event_id"] == "$1"


def test_a_new_name_of_the_bot_counts_at_once():
    """Its member event in the room says it; the name from the start still counts, another one does not."""
    rooms = rooms_with(ALICE, "@carol:hs.test")
    event = text("$1", "Inky: hello")
    assert not read(event, rooms).addressed
    renamed = {"timeline": {"events": [member(BOT, displayname="Inky")]}}
    rooms.update({"rooms": {"join": {ROOM: renamed}}})
    message = read(event, rooms)
    assert message.addressed
    assert message.context.names == ("Inky", "Squid Bot")
    assert read(text("$2", "Squid Bot: hello"), rooms).addressed
    assert not read(text("$3", "Squiddy: hello"), rooms).addressed


@rows(
    ("told", "back"),
    [
        (int(EPOCH.timestamp() * 1000) - 90_500, timedelta(seconds=90.5)),
        (int(EPOCH.timestamp() * 1000) + 90_000, timedelta(0)),
        (None, timedelta(0)),
        ("soon", timedelta(0)),
        (-5, timedelta(0)),
        (10**30, timedelta(0)),
    ],
    ids=["earlier", "later", "missing", "no number", "negative", "absurd"],
)
def test_the_time_is_that_of_the_server_and_never_later_than_now(told, back):
    """What was said while nobody ran has the time at which it was said; other people's clocks lead nowhere."""
    event = text("$1", "hello") | {"origin_server_ts": told}

    assert read(event).received_at == EPOCH - back


def test_an_emote_and_files():
    """An emote keeps its character, an unknown kind is its body; a file becomes its caption and a remark."""
    assert read(text("$1", "waves", msgtype="m.emote")).text == "/me waves"
    assert read(text("$1", "What is 2+2?", msgtype="nic.custom.confetti")).text == "What is 2+2?"
    picture = read(text("$1", "look at this", msgtype="m.image", filename="cat.png", url="mxc://a/b"))
    assert picture.text.startswith("look at this\n\n[A picture is attached")
    assert '"cat.png"' in picture.text
    assert read(text("$1", "a.pdf", msgtype="m.file")).text.startswith("[A file is attached")


@rows(
    ("event", "reason"),
    [
        (text("$1", sender=BOT), "own"),
        (text("$1", msgtype="m.notice"), "notice"),
        ({**text("$1"), "type": "m.poll.response"}, "no_message"),
        (text("$1", msgtype="org.x", **{"m.new_content": {"body": "b"}}), "edit"),
        (text("$1", msgtype="m.key.verification.request"), "unsupported"),
        (text("$1", "* b", **{"m.relates_to": {"rel_type": "m.replace", "event_id": "$0"}}), "edit"),
        (text("$1", "* b", **{"m.new_content": {"body": "b"}}), "edit"),
        (text("$1", "  \n"), "empty"),
        (text("$1", body=None), "malformed"),
        (text("$1", msgtype=None), "malformed"),
        (text("no-dollar"), "malformed"),
        (text("$1", sender="alice"), "malformed"),
        (text("$1", sender="@a:" + "b" * 300), "malformed"),
        ({**text("$1"), "content": {}}, "redacted"),
        ({**text("$1"), "content": "x"}, "redacted"),
        ({**text("$1"), "unsigned": {"redacted_because": {}}}, "redacted"),
        ({**text("$1"), "type": "m.room.encrypted"}, "encrypted"),
        ({**text("$1"), "type": "m.reaction"}, "no_message"),
        ({**text("$1"), "state_key": ""}, "no_message"),
        ({**text("$1", live=False), "type": "m.beacon_info", "state_key": ALICE}, "no_message"),
        ({}, "no_message"),
        (None, "malformed"),
        ([], "malformed"),
    ],
)
def test_what_is_no_message(event, reason):
    """Each of these is skipped, with its reason."""
    assert read(event) == Skip(reason)


def test_a_quotation_of_older_clients_is_left_out():
    """The fall-back of a reply is not what the person said; without a reply the same lines stay."""
    relation = {"m.relates_to": {"m.in_reply_to": {"event_id": "$0"}}}
    body = f"> <{BOT}> earlier\n> words\n\nand now?"

    assert read(text("$1", body, **relation)).text == "and now?"
    assert read(text("$1", body)).text == body
    assert read(text("$1", body, **relation)).context.in_reply_to == "$0"


@rows(
    ("body", "content", "meant"),
    [
        ("hello all", {}, False),
        ("hello", {"m.mentions": {"user_ids": [BOT]}}, True),
        ("hello", {"m.mentions": {"user_ids": ["@carol:hs.test"]}}, False),
        ("hello", {"m.mentions": {"user_ids": BOT}}, False),
        ("@room hello", {"m.mentions": {"room": True}}, False),
        ("x", {"formatted_body": '<a href="https://matrix.to/#/@bot:hs.test">B</a>'}, True),
        ("x", {"formatted_body": '<a href="https://matrix.to/#/%40bot%3Ahs.test?via=hs.test">B</a>'}, True),
        ("x", {"formatted_body": "<a href='matrix:u/bot:hs.test'>B</a>"}, True),
        ("x", {"formatted_body": '<a href="https://matrix.to/#/@bot:hs.test.evil">B</a>'}, False),
        (
            "x",
            {"formatted_body": '<mx-reply><a href="https://matrix.to/#/@bot:hs.test">B</a></mx-reply>x'},
            False,
        ),
        ("Squid Bot: hello", {}, True),
        ("hey squid bot, hello", {}, True),
        ("bot?", {}, True),
        ("@bot:hs.test hello", {}, True),
        ("robot and bottle", {}, False),
        ("@bot:hs.tester", {}, False),
        ("write to bot.example.org", {}, False),
        ("see https://host.test/bot/x", {}, False),
        ("see host.test/bot/x", {}, False),
        ("see http://bot/", {}, False),
        ("mail bot@host.test or me@bot", {}, False),
        ("run `bot start`", {}, False),
        ("```\nbot start\n```", {}, False),
        ("```\nbot start", {}, False),
        ("bot: run `x`", {}, True),
        ("bot: see https://host.test", {}, True),
        ("bot, hello", {"m.mentions": {}}, False),
        ("@bot:hs.test hello", {"m.mentions": {"user_ids": ["@carol:hs.test"]}}, False),
        (
            "x",
            {"m.mentions": {}, "formatted_body": '<a href="https://matrix.to/#/@bot:hs.test">B</a>'},
            False,
        ),
        ("bot, hello", {"m.mentions": "nonsense"}, True),
    ],
)
def test_mentions_in_a_group(body, content, meant):
    """A mention in any of its forms addresses the bot, and nothing that only looks similar."""
    assert read(text("$1", body, **content), GROUP).addressed is meant


def test_names_count_only_if_wanted():
    """The display name as a mention can be switched off; real mentions stay."""
    me = BotIdentity(channel="matrix", user_id=BOT, display_name="Squid Bot", mention_by_name=False)

    assert not read(text("$1", "Squid Bot: hello"), GROUP, me).addressed
    assert read(text("$1", "x", **{"m.mentions": {"user_ids": [BOT]}}), GROUP, me).addressed


def test_group_policies():
    """Open rooms mean the bot always, listed rooms only when they are listed."""
    everything = BotIdentity(channel="matrix", user_id=BOT, group_policy="open")
    listed = BotIdentity(channel="matrix", user_id=BOT, group_policy="allowlist", group_allow_from=(ROOM,))
    others = BotIdentity(
        channel="matrix", user_id=BOT, group_policy="allowlist", group_allow_from=("!else:hs.test",)
    )

    assert [read(text("$1"), GROUP, me).addressed for me in (everything, listed, others)] == [
        True,
        True,
        False,
    ]


def test_what_an_open_room_says_to_others_is_marked():
    """What names the bot or answers somebody is not, nor anything in a room of another policy or of two."""
    everything = BotIdentity(channel="matrix", user_id=BOT, group_policy="open")
    named = text("$1", "x", **{"m.mentions": {"user_ids": [BOT]}})
    reply = text("$1", **{"m.relates_to": {"m.in_reply_to": {"event_id": "$9"}}})
    read_here = [read(event, GROUP, everything) for event in (text("$1"), named, reply)]
    read_here += [read(named, GROUP), read(text("$1"), DIRECT, everything)]

    assert all(message.addressed for message in read_here)
    assert [bool(message.context.not_named) for message in read_here] == [True, False, False, False, False]


def test_two_people_alone_are_not_enough_for_direct():
    """Only a room that somebody called direct, with two members, both there, is a direct conversation."""
    assert read(text("$1"), rooms_with(ALICE)).audience is Audience.GROUP
    assert read(text("$1"), rooms_with(ALICE, "@carol:hs.test", direct=True)).audience is Audience.GROUP
    assert read(text("$1", sender="@gone:hs.test"), DIRECT).audience is Audience.GROUP
    assert read(text("$1"), Rooms(BOT)).audience is Audience.GROUP
    assert read(text("$1"), DIRECT).audience is Audience.DIRECT


def test_a_thread_is_remembered():
    """The thread's root goes into the context, and its fall-back reply is no reply."""
    relation = {
        "rel_type": "m.thread", "event_id": "$root", "is_falling_back": True, "m.in_reply_to": {"event_id": "$9"},
    }  # fmt: skip
    message = read(text("$1", **{"m.relates_to": relation}))

    assert message.context.route["thread"] == "$root"
    assert not message.context.in_reply_to


def test_text_that_no_encoder_takes_is_repaired():
    """Half characters and NUL do not travel further than this."""
    message = read(text("$1", "a\ud800b\x00c"))

    message.model_dump_json().encode()
    assert "\x00" not in message.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "event_id",
                    "sender",
                    "content",
                    "body",
                    "msgtype",
                    "m.relates_to",
                    "m.in_reply_to",
                    "m.mentions",
                    "user_ids",
                    "rel_type",
                    "unsigned",
                    "formatted_body",
                    "m.new_content",
                    "filename",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_nothing_that_strangers_write_raises(event, content):
    """Any JSON in any place is a message or a reason; no exception."""
    for candidate in (event, {**text("$1"), "content": content}, {**text("$1"), "unsigned": content}):
        for rooms in (DIRECT, GROUP):
            assert isinstance(read(candidate, rooms), InboundMessage | Skip)


@given(JSON)
def test_no_answer_of_a_server_breaks_the_registry(value):
    """The registry of rooms takes any JSON too."""
    rooms = Rooms(BOT)
    rooms.update({"rooms": {"join": {ROOM: value}}, "account_data": value})
    rooms.update({"rooms": value})
    rooms.update(
        {"rooms": {"join": {ROOM: {"timeline": {"events": [value, {**member(ALICE), "content": value}]}}}}}
    )
    rooms.seen_in_gap(ROOM, [value] if isinstance(value, dict) else [], [])

    assert not rooms.is_direct(ROOM, ALICE)


def test_a_third_person_does_not_see_what_two_have_said():
    """A private conversation and the same room with a third person in it are two sessions; replies reach both."""
    alone, shared = read(text("$1", "a secret"), DIRECT), read(text("$2", "what did she say?"), GROUP)

    assert alone.session != shared.session
    assert alone.session.conversation == shared.session.conversation == ROOM
    assert read(text("$3", "again"), DIRECT).session == alone.session


def test_a_location_is_read_as_text():
    """A model knows what to make of coordinates."""
    here = read(text("$1", "Ann is here", msgtype="m.location", geo_uri="geo:52.5,13.4;u=10"))
    assert (here.text, here.context.unreadable) == ("[A location] Ann is here geo:52.5,13.4;u=10", "")


LIVE = {
    **text("$1", live=True, timeout=900_000),
    "type": "org.matrix.msc3672.beacon_info",
    "state_key": ALICE,
}
NO_POLL = {"m.poll": {"question": {"m.text": []}}}


@rows(
    ("event", "what"),
    [
        (text("$1", " ", msgtype="org.example.dice"), "a message of this kind"),
        (LIVE, "a live location"),
        ({**text("$1"), "type": "m.poll.start", "content": NO_POLL}, "a poll"),
        ({**text("$1"), "type": "org.matrix.msc3381.poll.start", "content": NO_POLL}, "a poll"),
    ],
)
def test_what_cannot_be_read_is_said_where_nobody_else_is(event, what):
    """Nobody who writes to the bot alone waits in vain; among others it is silent, as for all that is not for it."""
    message = read(event)

    assert message.context.unreadable == f"I cannot read {what}. Please say it in words."
    assert (message.text, message.addressed) == (f"[{what}]", True)
    assert read(event, GROUP) == Skip("unsupported")
    assert not read(text("$1", "hello")).context.unreadable
