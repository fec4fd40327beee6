"""From messages to events: formatting, relations, and keys that make repeating safe."""

import pytest

from agent_core.messages import MessageNotes, OutboundKind, OutboundMessage, SessionKey
from channels.matrix.events.inbound_events import MARK
from channels.matrix.events.outbound_events import (
    MAX_CONTENT_BYTES,
    as_edit,
    build_content,
    size_of,
    transaction_id,
    transaction_of_event,
)
from tests.clock import EPOCH

ROUTE = {"event_id": "$q", "sender": "@alice:hs.test", "direct": False}
ASKED = {"route": ROUTE}


def outbound(text="hi", **fields):
    values = {
        "id": "row-1", "channel": "matrix", "account": "@bot:hs.test", "session": SessionKey("matrix", "!r"),
        "text": text, "created_at": EPOCH,
    }  # fmt: skip
    return OutboundMessage(**{**values, **fields})


def test_plain_text_stays_plain():
    """Without markup there is no formatted body; mentions are always said, even none."""
    content = build_content(outbound("just words"))

    assert content["body"] == "just words"
    assert "formatted_body" not in content
    assert content["m.mentions"] == {}


def test_no_escape_sequence_leaves():
    """Neither as text nor as markup: some read rooms in a terminal."""
    content = build_content(outbound("a\x1b[2J\x00 **b**\x9b31m"))

    assert content["body"] == "a[2J\ufffd **b**31m"
    assert "\x1b" not in content["formatted_body"]


def test_markup_is_formatted_safely():
    """Markdown is sent as written and as safe HTML."""
    content = build_content(outbound("**b** <script>x</script>"))

    assert content["format"] == "org.matrix.custom.html"
    assert content["formatted_body"] == "<p><strong>b</strong> &lt;script&gt;x&lt;/script&gt;</p>"
    assert "formatted_body" not in build_content(outbound("**b**"), formatted=False)


def test_an_edit_is_complete_and_fits():
    """The new content is whole with its formatting; the fall-back gives way, and nobody is mentioned anew."""
    for length in (100, 2000, 4000, 5000):
        content = build_content(outbound("**b** " * (length // 6), context=ASKED))
        edit = as_edit(content, "$old", max_bytes=MAX_CONTENT_BYTES)

        assert edit["m.new_content"]["body"] == content["body"]
        assert edit["m.new_content"]["formatted_body"] == content["formatted_body"]
        assert edit["m.new_content"]["m.mentions"] == {"user_ids": ["@alice:hs.test"]}
        assert edit["m.mentions"] == {}
        assert edit["m.relates_to"] == {"rel_type": "m.replace", "event_id": "$old"}
        assert "m.relates_to" not in edit["m.new_content"]
        assert edit["body"].startswith("* ")
        assert size_of(edit) <= MAX_CONTENT_BYTES


def test_only_the_first_part_points_back():
    """Further parts of an answer stay in the thread, and neither quote nor mention anybody again."""
    context = {"route": {**ROUTE, "thread": "$root"}}
    first, more = (build_content(outbound(context={**context, "part": part})) for part in (0, 1))

    assert first["m.mentions"] == {"user_ids": ["@alice:hs.test"]}
    assert more["m.mentions"] == {}
    assert [one["msgtype"] for one in (first, more)] == ["m.text", "m.notice"], "the phone rings once"
    assert [one["m.relates_to"]["event_id"] for one in (first, more)] == ["$root", "$root"]
    assert [one["m.relates_to"]["is_falling_back"] for one in (first, more)] == [False, True]


@pytest.mark.parametrize(
    ("reply", "direct", "points_back"),
    [
        ("groups", False, True),
        ("groups", True, False),
        ("always", True, True),
        ("never", False, False),
    ],
)
def test_replies(reply, direct, points_back):
    """An answer points back to its question as the settings say."""
    content = build_content(outbound(context={"route": {**ROUTE, "direct": direct}}), reply=reply)

    assert ("m.relates_to" in content) is points_back
    assert content["m.mentions"] == ({} if direct else {"user_ids": ["@alice:hs.test"]})


def test_a_thread_is_answered_in_the_thread():
    """The answer to a question in a thread is in the same thread."""
    content = build_content(outbound(context={"route": {**ROUTE, "direct": True, "thread": "$root"}}))

    assert content["m.relates_to"] == {
        "rel_type": "m.thread", "event_id": "$root", "is_falling_back": True, "m.in_reply_to": {"event_id": "$q"},
    }  # fmt: skip


def test_kinds():
    """A notice is one that robots ignore, and points to nothing; an alert is a message."""
    notice = build_content(outbound(kind=OutboundKind.NOTICE, context=ASKED))
    alert = build_content(outbound(kind=OutboundKind.ALERT, context=ASKED))

    assert (notice["msgtype"], alert["msgtype"]) == ("m.notice", "m.text")
    assert "m.relates_to" not in notice
    assert "m.relates_to" not in alert


def test_a_strange_context_does_no_harm():
    """What stands in the context was once written by strangers."""
    for route in ({"event_id": 5}, {"event_id": "$q", "sender": ["x"]}, {"event_id": "x\n"}, {}):
        build_content(outbound(context={"route": route}))


def test_keys():
    """The key depends on the message's id alone, and the event can be recognised by it."""
    first, second = outbound("a"), outbound("b", id="row-2")

    assert transaction_id(first.id) == transaction_id(outbound("edited").id)
    assert transaction_id(first.id) != transaction_id(second.id)
    event = {"sender": "@bot:hs.test", "content": build_content(first)}
    assert transaction_of_event(event) == transaction_id(first.id) != transaction_id(second.id)
    assert MARK in event["content"]
    assert transaction_of_event({"content": {MARK: 1}}) == ""


BOB, CAROL, BOT = "@bob:hs.test", "@carol:hs.test", "@bot:hs.test"
MEMBERS = {BOB: "Bob <b>", CAROL: "Carol", BOT: "the bot", "@alice:hs.test": "Alice"}


def pill(user_id, name):
    return f'<a href="https://matrix.to/#/{user_id}">{name}</a>'


def test_the_id_of_a_member_becomes_a_pill():
    """Whoever is named in a text is mentioned beside who has asked, with the name that they use, escaped."""
    content = build_content(outbound(f"Ask {BOB}, or {CAROL}.", context=ASKED), members=MEMBERS)

    assert content["formatted_body"] == f"<p>Ask {pill(BOB, 'Bob &lt;b&gt;')}, or {pill(CAROL, 'Carol')}.</p>"
    assert content["m.mentions"] == {"user_ids": ["@alice:hs.test", BOB, CAROL]}
    assert content["body"] == f"Ask {BOB}, or {CAROL}."


@pytest.mark.parametrize(
    "text",
    [
        "ask @eve:hs.test",
        "all of @room",
        f"`{BOB}`",
        f"```\n{BOB}\n```",
        f"> {BOB} has said that",
        f"[{BOB}](https://hs.test)",
        f"https://hs.test/{BOB}",
        f"me{BOB}",
        f"{BOB}.evil.test",
        f"{BOB}:8448",
        f"I am {BOT}",
    ],
)
def test_nobody_else_is_mentioned(text):
    """Strangers, rooms, the bot itself, and what only looks like an id or stands in code, quotations and links."""
    content = build_content(outbound(text), members=MEMBERS)

    assert content["m.mentions"] == {}
    assert "matrix.to" not in content.get("formatted_body", "")


def test_a_long_list_calls_nobody():
    """More than five names in a text are pills, and mention only who has asked: others may have put them there."""
    many = {f"@p{number}:hs.test": "" for number in range(6)}
    five, six = (
        build_content(outbound(" ".join(list(many)[:count]), context=ASKED), members=many) for count in (5, 6)
    )

    assert five["m.mentions"] == {"user_ids": ["@alice:hs.test", *list(many)[:5]]}
    assert six["m.mentions"] == {"user_ids": ["@alice:hs.test"]}
    assert six["formatted_body"].count("matrix.to") == 6


def test_an_answer_to_a_command_mentions_only_who_gave_it():
    """A list of everybody's reminders rings for nobody else; the ids in it are pills all the same."""
    for is_command, expected in ((True, ["@alice:hs.test"]), (False, ["@alice:hs.test", BOB])):
        asked = ASKED | {"notes": MessageNotes(is_command=is_command)}
        content = build_content(outbound(f"tea (for {BOB})", context=asked), members=MEMBERS)
        assert content["m.mentions"] == {"user_ids": expected}
        assert pill(BOB, "Bob &lt;b&gt;") in content["formatted_body"]


def test_the_gateway_says_for_whom_it_is():
    """Then exactly those are mentioned, known here or not; a whole room only so; once in an answer of parts."""
    for meant, expected in (
        ([BOB, "@far:hs.test"], {"user_ids": [BOB, "@far:hs.test"]}),
        (["@room"], {"room": True}),
        (["nonsense"], {"user_ids": ["@alice:hs.test"]}),
        ([], {"user_ids": ["@alice:hs.test"]}),
    ):
        message = outbound(f"For {BOB}: {CAROL} x", context=ASKED, rings_for=tuple(meant))
        assert build_content(message, members=MEMBERS)["m.mentions"] == (
            expected
            if expected != {"user_ids": ["@alice:hs.test"]}
            else {"user_ids": ["@alice:hs.test", BOB, CAROL]}
        )
        assert build_content(message, members=MEMBERS, first=False)["m.mentions"] in (
            {}, {"user_ids": [BOB, CAROL]},
        )  # fmt: skip


def test_the_end_of_a_streamed_answer_mentions_whom_it_names():
    """Who has asked was mentioned when it began."""
    content = build_content(outbound(f"Ask {BOB}", context=ASKED), members=MEMBERS)

    assert as_edit(content, "$old", max_bytes=MAX_CONTENT_BYTES)["m.mentions"] == {}
    edit = as_edit(content, "$old", max_bytes=MAX_CONTENT_BYTES, called=[BOB])
    assert edit["m.mentions"] == {"user_ids": [BOB]}


def test_what_waits_for_somebody_rings():
    """It is no notice to a client, mentions those people, and goes into the thread of the question."""
    asked = {"route": {**ROUTE, "thread": "$root"}}
    content = build_content(
        outbound(kind=OutboundKind.NOTICE, context=asked, rings_for=("@ann:hs.test", "ann@mail.test"))
    )
    assert content["msgtype"] == "m.text"
    assert content["m.mentions"] == {"user_ids": ["@ann:hs.test"]}
    assert content["m.relates_to"]["event_id"] == "$root"
    assert build_content(outbound(kind=OutboundKind.NOTICE, rings_for=()))["msgtype"] == "m.text"
    silent = build_content(outbound(kind=OutboundKind.NOTICE, context=asked))
    assert (silent["msgtype"], silent["m.mentions"]) == ("m.notice", {})
