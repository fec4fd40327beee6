"""
The daemon was killed between the sending of a question and the server's confirmation. The owner signed the question, or
answered it, before the next run had found out that it was sent, and the sign was taken for one below somebody else's
message. The event itself says which message it is, in a mark that only we can set.
"""

from __future__ import annotations

import pytest

from agent_core.messages import InboundMessage, SessionKey
from channels.email.parse.mail_threads import message_id_of, names_outbound
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.events.inbound_events import MARK, Skip
from channels.matrix.events.outbound_events import transaction_id
from channels.matrix.receive.event_handler import Unfinished
from tests.doubles.homeserver import failure, text
from tests.scripted_rooms import MALLORY, Desk, answering
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, GROUP, ROOM

EVENT = r"/rooms/.*/event/%24asked$"
SIGN = {
    **text("$sign", **{"m.relates_to": {"rel_type": "m.annotation", "event_id": "$asked", "key": "👍"}}),
    "type": "m.reaction",
}


def asked(outbound="out-1", sender=BOT, **unsigned):
    """What the homeserver has of a question."""
    return HttpAnswer(
        200, {**text("$asked", sender=sender, **{MARK: transaction_id(outbound)}), "unsigned": unsigned}
    )


def desk(*answers, doubt=("out-0", "out-1"), **settings):
    """A room of several, in which it is not known whether two messages were sent."""
    one = Desk(GROUP, **settings)
    one.inbox.in_doubt = list(doubt)
    one.server.on("GET", EVENT, *answers)
    return one


@pytest.mark.parametrize(
    "answers",
    [
        (asked(),),
        (LinkBroken("gone", maybe_taken=False), failure(502), asked()),
        (
            asked(
                "preview",
                **{
                    "m.relations": {"m.replace": text("$edit", sender=BOT, **{MARK: transaction_id("out-1")})}
                },
            ),
        ),
    ],
)
async def test_a_sign_counts_before_the_question_is_confirmed(answers):
    """Also when the homeserver is not there at first, and when the question was shown while it was written."""
    found = await desk(*answers).read(SIGN)
    assert isinstance(found, InboundMessage)
    assert (found.kind, found.text, found.context.outbound) == ("reaction", "👍", "out-1")


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [
        (asked(sender=MALLORY), ["out-1"]),
        (asked("out-2"), ["out-1"]),
        (failure(404, "M_NOT_FOUND"), ["out-1"]),
        (asked(), []),
    ],
    ids=["somebody else set our mark", "another message", "not there", "nothing is in doubt"],
)
async def test_a_sign_below_something_else_is_nothing(answer, doubt):
    """Anybody can copy the mark into an event of their own; what is not in doubt is not asked for."""
    one = desk(answer, doubt=doubt)
    assert await one.read(SIGN) == Skip("no_message")
    assert len(one.server.asked("GET", EVENT)) == bool(doubt)


async def test_a_question_confirmed_meanwhile():
    """The sending is confirmed while the homeserver is asked."""
    one = desk()

    def confirmed(_call):
        one.inbox.in_doubt, one.inbox.delivered = [], {"$asked": "out-1"}
        return asked()

    one.server.on("GET", EVENT, confirmed)
    found = await one.read(SIGN)
    assert isinstance(found, InboundMessage)
    assert found.context.outbound == "out-1"


async def test_nobody_waits_for_it_and_without_it_a_sign_is_nothing():
    """The receiving loop goes on; a sign of which nobody can say what it is about is no message."""
    begun = await desk(asked()).conversation.begin(ROOM, SIGN)
    assert isinstance(begun, Unfinished)
    assert begun.without == Skip("no_message")


async def test_an_answer_to_it_is_meant_for_us():
    """Where a mention is wanted, a reply to something of ours is one."""
    one = desk(asked())
    found = await one.read(text("$reply", **answering("$asked")))
    assert found.addressed
    other = desk(asked(sender=MALLORY))
    assert not (await other.read(text("$reply", sender=ALICE, **answering("$asked")))).addressed


async def test_a_thread_in_which_we_have_spoken_is_still_no_mention():
    """Where threads are not all meant for us, a doubt about some message makes none of them so."""
    one = desk(asked(sender=MALLORY), threads="follow")
    root = text("$root", sender=ALICE)
    one.has({**root, "unsigned": {"m.relations": {"m.thread": {"current_user_participated": True}}}})
    relation = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$asked"}}
    assert not (await one.read(text("$next", **{"m.relates_to": relation}))).addressed
    always = desk(asked(sender=MALLORY), threads="always")
    always.has({**root, "unsigned": {"m.relations": {"m.thread": {"current_user_participated": True}}}})
    assert (await always.read(text("$next", **{"m.relates_to": relation}))).addressed


def test_the_mail_that_is_answered_says_which_one_it_is():
    """Whatever its thread; an id of the same form at another account is not ours."""
    account = "bot@hs.test"
    for thread in ("thread-" + "a" * 24, "elsewhere"):
        name = message_id_of("out-1", SessionKey("email", thread, "ann@hs.test"), account=account)
        assert names_outbound(name, "out-1", account=account)
        assert not names_outbound(name, "out-2", account=account)
        assert not names_outbound(name, "out-1", account="bot@other.test")
