"""
An older copy of ``gateway.db`` is put back: a start with it is refused, until the operator has accepted it.

Then no message is answered twice: what came after the copy is fetched once more and waits for a person, and
what comes later is answered exactly once; nothing is mixed up, although row numbers are given out again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.operations.backup.restore import accept_copy
from gateway.store.rollback_guard import read_high_water_mark
from gateway.system.home import Home
from tests.kill.scenario import Nursery, Scenario


@pytest.mark.parametrize("moved", [False, True])
def test_an_older_copy_is_refused_until_it_is_accepted(nursery: Nursery, tmp_path: Path, moved: bool) -> None:
    """Every message is answered once; the control: whoever says that nothing is lost has those between twice."""
    world = Scenario(tmp_path, nursery)
    home = tmp_path / "home"
    for _ in range(3):
        world.say("ann", "")
    world.live_until_quiet()
    shutil.copyfile(home / "gateway.db", tmp_path / "copy")

    for _ in range(3):
        world.say("ann", "")
        world.say("bob", "")
    world.live_until_quiet()
    mark = read_high_water_mark(home / "state" / "gateway-db.json")

    for ending in ("-wal", "-shm"):
        (home / f"gateway.db{ending}").unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "copy", home / "gateway.db")
    # A server such as Matrix's gives whatever is behind the position that it is asked with.
    (tmp_path / "server" / "acknowledged.jsonl").write_text("")
    for _ in range(2):
        assert world.live() != 0
        assert "squidbot restored" in world.log()
        assert read_high_water_mark(home / "state" / "gateway-db.json") == mark
    accept_copy(Home(home), now=datetime.now(UTC), until=None, moved=moved)
    for _ in range(3):
        world.say("ann", "")
    world.live_until_quiet()

    evidence = world.evidence()
    times = Counter(text.strip() for _, text in evidence.seen)
    said = [saying.number for saying in evidence.said]
    between = said[3:9]
    assert times == {f"re: #{number}": 2 if moved and number in between else 1 for number in said}
    assert evidence.unfiled == 0
