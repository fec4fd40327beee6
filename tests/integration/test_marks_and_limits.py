"""Marks beside answers, at a homeserver with the limits with which Synapse comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from channels.matrix.client.nio_homeserver import NioHomeserver
from channels.matrix.send.reactions import AckReactions
from devservers import MatrixPeer, Synapse
from tests.doubles.agent import ModelScript
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house

pytestmark = [pytest.mark.integration]
DEFAULT = {"rc_message": {"per_second": 0.2, "burst_count": 10}}
QUESTIONS = 7


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with Synapse.start(tmp_path_factory.mktemp("limited"), overrides=DEFAULT) as server:
        yield server


@pytest.mark.parametrize("counting", [True, False], ids=["as it is", "the control"])
async def test_no_answer_waits_behind_a_mark(
    limited: Synapse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counting: bool
) -> None:
    """Seven questions one after the other; without counting what is sent, marks take what the answers need."""
    refused, marks = list[str](), list[str]()
    request: Callable[..., Any] = NioHomeserver.request

    async def watched(self: NioHomeserver, method: str, path: str, *given: Any, **more: Any) -> Any:
        answer = await request(self, method, path, *given, **more)
        if "/send/" in path:
            kept = refused if answer.status == 429 else marks
            kept += [path] if kept is refused or "m.reaction" in path else []
        return answer

    monkeypatch.setattr(NioHomeserver, "request", watched)
    if not counting:
        monkeypatch.setattr(AckReactions, "note_event", lambda _: None)
    name = f"m{int(counting)}"
    bot, ann = (limited.register(f"{who}{name}", "pw") for who in ("bot", "ann"))
    person = MatrixPeer.of(limited.url, ann)
    took = []
    async with open_house(
        limited.url, bot, tmp_path, model=ModelScript(*["fine"] * QUESTIONS), owner=person, ack_reactions=True
    ) as there:
        room = await there.room(person)
        for number in range(QUESTIONS):
            began = time.monotonic()
            await call(person.send, room, f"question {number}")
            await there.answers(person, room, number + 1, within_s=100)
            took.append(round(time.monotonic() - began, 2))
    print("seconds from question to answer:", took)
    assert marks
    assert any("/send/m.room.message/" in path for path in refused) is not counting
