"""`UndecryptableEvents`: references to messages without a key, and what people are told about them."""

from __future__ import annotations

import pytest

from channels.matrix.crypto.undecryptable import MAX_WAITING, PATIENCE_S, UndecryptableEvents

ROOM = "!room:hs.test"
NIA, MALLORY = "@nia:hs.test", "@mallory:hs.test"


def withheld(session, code="m.unverified", sender=NIA):
    content = {"session_id": session, "code": code, "room_id": ROOM}
    return {"type": "m.room_key.withheld", "sender": sender, "content": content}


def waiting(count=1, *, session="s", at=0.0):
    one = UndecryptableEvents()
    for number in range(count):
        one.add(ROOM, f"${number}", session, sender=NIA, now=at)
    return one


def test_references_survive_and_hold_no_text():
    """What is dumped is loaded again, told or not, and contains ids only."""
    one = waiting(2)
    one.finish_notice([next(iter(one._references.values()))])
    again = UndecryptableEvents()
    again.load(one.dump())

    assert again.dump() == one.dump()
    assert len(again) == 2


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"references": [{"x": 1}]}', "null"])
def test_what_cannot_be_loaded_is_nothing(text):
    """A damaged value costs the references and nothing else."""
    one = UndecryptableEvents()
    one.load(text)

    assert len(one) == 0


def test_what_is_handed_over_is_left_out_only_in_the_dump():
    """The dump that is committed together with a message lacks it; memory keeps it until that is true."""
    one = waiting(2)
    dumped = one.dump(without=["$0"])

    assert "$0" not in dumped
    assert len(one) == 2


def test_there_are_never_too_many():
    """The oldest reference goes when there is no more room."""
    one = waiting(MAX_WAITING + 5)

    assert len(one) == MAX_WAITING
    assert "$0" not in one._references


def test_an_unsigned_device_is_named_at_once():
    """The reason is ours: no client can send it. The control: without it, nothing is said yet."""
    one = waiting()
    one.withheld(withheld("s", "not-signed"))
    assert one.due_notices(0.0) == []
    one.add(ROOM, "$later", "t", sender=NIA, now=0.0, unsigned=True)
    [(_, text, [reference])] = one.due_notices(0.0)
    assert "session that is not verified" in text
    assert reference.event_id == "$later"
    assert [each.event_id for each in one.readable(lambda sender, _room, session: session == "t")] == [
        "$later"
    ]


def test_people_are_told_after_a_while_and_once():
    """Nothing at first, one notice for all messages of a room after a while, and then silence."""
    one = waiting(3)
    assert one.due_notices(PATIENCE_S - 1) == []
    [(room, text, references)] = one.due_notices(PATIENCE_S)
    one.finish_notice(references, now=PATIENCE_S)
    one.add(ROOM, "$later", "s", sender=NIA, now=20.0)

    assert (room, len(references)) == (ROOM, 3)
    assert "3 messages" in text
    assert one.due_notices(60.0) == []
    assert one.next_at() is None


def test_a_withheld_key_is_told_at_once_with_its_reason():
    """The sender's client has said why; there is nothing to wait for."""
    one = waiting()
    one.withheld(withheld("s"))
    [(_, text, _)] = one.due_notices(0.0)

    assert "does not trust" in text


def test_after_a_long_time_there_is_another_notice():
    """Silence lasts for a while, not for ever."""
    one = waiting()
    [(_, _, references)] = one.due_notices(PATIENCE_S)
    one.finish_notice(references, now=PATIENCE_S)
    one.add(ROOM, "$later", "s", sender=NIA, now=5000.0)

    assert len(one.due_notices(5000.0 + PATIENCE_S)) == 1


def test_malformed_reasons_are_harmless():
    """Whatever a stranger sends as a reason, it is bounded."""
    one = waiting()
    for content in (
        {},
        {"code": 5},
        {"code": "x"},
        {"session_id": "s"},
        {"session_id": "s", "code": "*!* x"},
        [],
    ):
        one.withheld({"type": "m.room_key.withheld", "content": content})
    for number in range(1000):
        one.withheld(withheld(f"s{number}", "x" * 1000))
        one.withheld(withheld(f"s{number}", "x" * 50))

    assert len(one.dump()) < 30_000


def test_very_old_references_are_dropped():
    """A key that has not come in two weeks is not waited for any longer."""
    one = waiting()
    one.finish_notice(list(one._references.values()))
    one.due_notices(20 * 86_400.0)

    assert len(one) == 0


def test_a_notice_is_in_the_language_of_its_person():
    """In that of the home if it is about the messages of several people."""
    german = {NIA: "de"}
    for senders, begins in (((NIA,), "Ich kann"), ((MALLORY,), "I cannot"), ((NIA, MALLORY), "I cannot")):
        one = UndecryptableEvents(language_of=lambda who: german.get(who, ""))
        for number, sender in enumerate(senders):
            one.add(ROOM, f"${number}", "s", sender=sender, now=0.0)
        (told,) = one.due_notices(PATIENCE_S)
        assert told[1].startswith(begins)
