"""Two homes in one process: `build` keeps nothing that both would share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gateway_world import world

pytestmark = [pytest.mark.integration]


async def test_each_answers_its_own_people_and_one_goes_on_when_the_other_ends(tmp_path: Path):
    """Same person, same conversation; each home counts its own messages only."""
    async with world(tmp_path / "ann") as ann:
        async with world(tmp_path / "bob") as bob:
            assert "one" in (await ann.asked("one")).text
            assert "two" in (await bob.asked("two")).text
            assert sum((await ann.inbox()).values()) == sum((await bob.inbox()).values()) == 1
            assert len(ann.server.seen("dm-ann")) == len(bob.server.seen("dm-ann")) == 1
        assert "three" in (await ann.asked("three")).text
    async with world(tmp_path / "bob") as bob:
        assert sum((await bob.inbox()).values()) == 1
