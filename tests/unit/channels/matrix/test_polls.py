"""Polls under both of their names: as text, and what has come of them."""

import pytest

from channels.matrix.events.inbound_events import read_event
from channels.matrix.events.polls import Poll, poll_in, poll_of, result_of
from tests.clock import EPOCH
from tests.doubles.homeserver import text
from tests.unit.channels.matrix.test_inbound import DIRECT, GROUP, ME, ROOM

STABLE = {
    "m.text": [{"body": "When do we eat?\n1. six\n2. seven"}],
    "m.poll": {
        "kind": "m.disclosed",
        "max_selections": 1,
        "question": {"m.text": [{"body": "When do\nwe eat?"}]},
        "answers": [
            {"m.id": "a", "m.text": [{"body": "six"}]},
            {"m.id": "b", "m.text": [{"mimetype": "text/html"}, {"body": "seven"}]},
            {"m.text": [{"body": "no id"}]},
        ],
    },
}
UNSTABLE = {
    "org.matrix.msc1767.text": "When do we eat?\n1. six\n2. seven",
    "org.matrix.msc3381.poll.start": {
        "kind": "org.matrix.msc3381.poll.disclosed",
        "max_selections": 1,
        "question": {
            "org.matrix.msc1767.text": "When do we eat?",
            "body": "When do we eat?",
            "msgtype": "m.text",
        },
        "answers": [
            {"id": "a", "org.matrix.msc1767.text": "six"},
            {"id": "b", "org.matrix.msc1767.text": "seven"},
        ],
    },
}
KINDS = [("m.poll.start", STABLE), ("org.matrix.msc3381.poll.start", UNSTABLE)]
POLL = Poll("When?", {"a": "six", "b": "seven", "c": "never"}, most=2)


@pytest.mark.parametrize(("kind", "content"), KINDS)
@pytest.mark.parametrize("rooms", [DIRECT, GROUP], ids=["alone", "among others"])
def test_a_poll_is_text(kind, content, rooms):
    """Its question and choices can be read; the bot alone is asked it, and among others it is talk."""
    message = read_event(
        {**text("$1"), "type": kind, "content": content}, ROOM, me=ME, rooms=rooms, now=EPOCH
    )
    assert message.text == "[A poll] When do we eat?\n- six\n- seven"
    assert message.addressed is (rooms is DIRECT)
    assert not message.context.unreadable


def vote(sender, chosen, at=5, *, stable=True):
    kind = "m.poll.response" if stable else "org.matrix.msc3381.poll.response"
    content = {"m.selections": chosen} if stable else {kind: {"answers": chosen}}
    return {"type": kind, "sender": sender, "origin_server_ts": at, "content": content}


def test_the_last_vote_of_each_counts_until_the_end():
    """Newest first: later ones than the end, further choices and unknown ones do not count."""
    votes = [
        vote("@late:x", ["c"], 11),
        vote("@ann:x", ["b", "a", "c"], 9),
        vote("@ann:x", ["c"], 3),
        vote("@bob:x", ["b"], stable=False),
        vote("@cid:x", ["b", "unknown"]),
        vote("@dan:x", "b"),
        {**vote("@eve:x", ["c"]), "type": "m.poll.end"},
    ]
    assert result_of(POLL, votes, 10) == "[The poll “When?” has ended. Votes: seven: 2, six: 1]"
    assert result_of(POLL, [], 10) == "[The poll “When?” has ended. Votes: none]"


@pytest.mark.parametrize(
    "content", [{}, {"m.poll": []}, {"m.poll": {"question": "x"}}, {"m.poll": {"answers": [1]}}]
)
def test_what_is_no_poll(content):
    """Anybody writes events: whatever is not shaped like one is none."""
    assert poll_in(content) is None
    assert poll_of({"content": {"m.relates_to": {"rel_type": "m.reference", "event_id": content}}}) == ""
