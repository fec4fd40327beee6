"""
Whoever knew the bot's name could send it something to its device that was nested deeper than its Python reads and
not deeper than the homeservers' do (a newer Python goes ten times as deep): the answer of ``/sync`` that held it
could not be read, came again with the next request, and the account was deaf for good.
"""

from __future__ import annotations

import json
import sys

import pytest

from channels.matrix.client import json_access
from channels.matrix.client.json_access import decode_object
from tests.unit.channels.matrix.test_nio_client import ASK, GOOD, serving

DEEP = 20_000


def answer_with(value, *, at="to_device"):
    whole = {
        "next_batch": "n",
        at: {"events": [{"type": "x", "sender": "@evil:b", "content": {"a": "HERE", "b": 1}}]},
        "rooms": {"join": {"!a:b": {"timeline": {"events": [GOOD]}}}},
    }
    return json.dumps(whole).replace('"HERE"', value)


@pytest.mark.parametrize(
    "poison",
    [
        "[" * DEEP + "]" * DEEP,
        '{"a":' * DEEP + "1" + "}" * DEEP,
        '[{"]}\\"":' * DEEP + '"[{"' + "}]" * DEEP,
        "9" * (sys.get_int_max_str_digits() + 1),
    ],
    ids=["lists", "objects", "brackets in texts", "a number"],
)
async def test_everything_else_in_the_answer_is_read(poison):
    """The value is gone; its event, the position and other people's messages are there."""
    with pytest.raises((RecursionError, ValueError)):
        json.loads(answer_with(poison))
    async with serving() as (server, homeserver):
        server.body = answer_with(poison)
        answer = await homeserver.sync(ASK)

    [event] = answer.body["to_device"]["events"]
    assert answer.body["next_batch"] == "n"
    assert answer.body["rooms"]["join"]["!a:b"]["timeline"]["events"] == [GOOD]
    assert event["content"]["b"] == 1


def test_what_is_read_already_stays_as_it_is():
    """Cutting keeps what is not too deep, whatever is in texts; what is no JSON is nothing."""
    whole = {"a": [{"b": '\\"]}[{', "c\\": "[", "é": "é"}, 1.5, None, True], "d": {}}
    for text in (json.dumps(whole), json.dumps(whole, ensure_ascii=False)):
        assert json.loads(json_access._shallow(text.encode())) == decode_object(text.encode()) == whole
    deep = "[" * DEEP
    for broken in ("", "{", "[1]", "<html>", '{"a":' + deep, '{"a":' + deep + '"', '{"a":"' + '\\"' * DEEP):
        assert decode_object(broken.encode()) == {}
