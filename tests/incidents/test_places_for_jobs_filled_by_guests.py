"""
Five guests had twenty background jobs open each, and the owner's job was refused: there were as many as there may be.
And three of one guest that ran took every place that jobs have, for as long as a job may take.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from gateway.proactive import background_jobs
from tests.integration.background_world import ANN, BOB, Worker, house, until
from tests.integration.test_tool_approval import EVE

STARTED, REFUSED = "so: Started as", "so: Error: "


async def test_the_last_places_are_the_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four places guests have two, whoever they are; the control is the one that is the second of them."""
    monkeypatch.setattr(background_jobs, "_OPEN", 4)
    monkeypatch.setattr(background_jobs, "_OPEN_OF_PERSON", 2)
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people") as one:
        said = [(await one.asked("start x", person=who)).text for who in (BOB, EVE, EVE, ANN, ANN)]
        model.gate.set()
    begun = [each.startswith(STARTED) for each in said]
    assert begun == [True, True, False, True, True], said
    assert said[2].startswith(REFUSED)


async def test_a_job_of_the_owner_runs_beside_those_of_guests(tmp_path: Path) -> None:
    """At once, although guests have more jobs than there are places."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people", gateway={"max_concurrent_turns": 4}) as one:
        for who, what in ((BOB, "b1"), (BOB, "b2"), (BOB, "b3"), (EVE, "e1"), (ANN, "a1")):
            await one.asked(f"start {what}", person=who)
        await until(lambda: "a1" in model.began)
        assert len(model.began) == 3
        model.gate.set()
        await until(lambda: len(model.began) == 5)
