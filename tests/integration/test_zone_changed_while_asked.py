"""The time zone is changed while a question waits: the yes is to the moment that was shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import OutboundKind
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import world
from tests.integration.test_answers_in_words import said
from tests.integration.test_several_calls_of_one_yes import Bundle
from tests.integration.test_shell import ANN
from tests.integration.test_tool_approval import question

pytestmark = pytest.mark.integration
DM = f"dm-{ANN}"
WRITE = ("write_file", {"path": "plan.txt", "content": "x"})


def in_zone(zone: str) -> dict[str, Any]:
    owner = {"aliases": [{"channel": "matrix", "address": ANN}]}
    return {"owner": owner, "timezone": zone, "tools": {"require_approval": ["write_file", "schedule"]}}


def reminder(at: str) -> tuple[str, dict[str, str]]:
    return "schedule", {"action": "add", "kind": "remind", "text": "Call Tom", "at": at}


@pytest.mark.parametrize(
    ("call", "is_asked_again"),
    [
        (reminder("2030-12-03 09:30"), True),
        (reminder("every day 09:30"), True),
        (reminder("in 2 hours"), False),
        (WRITE, False),
    ],
)
async def test_a_yes_counts_unless_it_would_be_another_moment(
    tmp_path: Path, call: tuple[str, dict[str, str]], is_asked_again: bool
) -> None:
    server = LoopbackServer()
    options: dict[str, Any] = {"server": server, "name": "matrix", "models": {"demo": Bundle()}}
    async with world(tmp_path, settings=in_zone("Europe/Berlin"), **options) as one:
        server.say(ANN, json.dumps([call]))
        _, name = await question(one, DM)
    async with world(tmp_path, settings=in_zone("America/New_York"), **options) as one:
        server.say(ANN, "yes")
        if is_asked_again:
            notice, again = await question(one, DM, 2)
            assert "What you approved has changed since, so I ask again." in notice.text
            assert again != name
            server.say(ANN, f"!approve {again}")
        assert await said(one, DM, "so: ")
        notices = [each for each in server.seen(DM) if each.kind is OutboundKind.NOTICE]
        assert len(notices) == 1 + is_asked_again
