"""From messages to events: formatting, relations, and keys that make repeating safe."""

import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.matrix.outbound import (
    MARK,
    MAX_CONTENT_BYTES,
    build_content,
    is_ours,
    size_of,
    transaction_id,
)
from tests.clock import EPOCH

ASKED = {"event_id": "$q", "sender": "@alice:hs.test", "direct": False}


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


def test_markup_is_formatted_safely():
    """Markdown is sent as written and as safe HTML."""
    content = build_content(outbound("**b** <script>x</script>"))

    assert content["format"] == "org.matrix.custom.html"
    assert content["formatted_body"] == "<p><strong>b</strong> &lt;script&gt;x&lt;/script&gt;</p>"
    assert "formatted_body" not in build_content(outbound("**b**"), formatted=False)


def test_a_formatted_body_that_is_too_large_is_left_out():
    """What fits as text is sent, even if its HTML would not fit."""
    content = build_content(outbound("<" * 16_000))

    assert "formatted_body" not in content
    assert size_of(content) <= MAX_CONTENT_BYTES


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
    content = build_content(outbound(context={**ASKED, "direct": direct}), reply=reply)

    assert ("m.relates_to" in content) is points_back
    assert content["m.mentions"] == ({} if direct else {"user_ids": ["@alice:hs.test"]})


def test_a_thread_is_answered_in_the_thread():
    """The answer to a question in a thread is in the same thread."""
    content = build_content(outbound(context={**ASKED, "direct": True, "thread": "$root"}))

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
    for context in ({"event_id": 5}, {"event_id": "$q", "sender": ["x"]}, {"event_id": "x\n"}, {}):
        build_content(outbound(context=context))


def test_keys():
    """The key depends on the message's id alone, and the event can be recognised by it."""
    first, second = outbound("a"), outbound("b", id="row-2")

    assert transaction_id(first) == transaction_id(outbound("edited"))
    assert transaction_id(first) != transaction_id(second)
    event = {"sender": "@bot:hs.test", "content": build_content(first)}
    assert is_ours(event, first, "@bot:hs.test")
    assert not is_ours(event, second, "@bot:hs.test")
    assert not is_ours({**event, "sender": "@mallory:hs.test"}, first, "@bot:hs.test")
    assert MARK in event["content"]
