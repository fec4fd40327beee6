"""
An older copy of ``gateway.db`` is put back: what happens is what the operator is told.

What came after the copy is fetched and answered once more; what comes later is answered exactly once; nothing
is mixed up, although row numbers are given out again.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from gateway.queue.rollback_guard import read_high_water_mark, warning_of
from tests.clock import EPOCH
from tests.kill.scenario import Nursery, World


def test_an_older_copy_answers_again_what_it_does_not_know(nursery: Nursery, tmp_path: Path) -> None:
    """Each message from before and after once, those in between twice, each with an answer of its own, and it is told."""
    world = World(tmp_path, nursery)
    home = tmp_path / "home"
    for _ in range(3):
        world.say("ann", "")
    world.live_until_quiet()
    shutil.copyfile(home / "gateway.db", tmp_path / "copy")

    for _ in range(3):
        world.say("ann", "")
        world.say("bob", "")
    world.live_until_quiet()
    assert "rollback_guard.older_copy_found" not in world.log()

    for ending in ("-wal", "-shm"):
        (home / f"gateway.db{ending}").unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "copy", home / "gateway.db")
    # A server such as Matrix's gives whatever is behind the position that it is asked with.
    (tmp_path / "server" / "acknowledged.jsonl").write_text("")
    for _ in range(3):
        world.say("ann", "")
    world.live_until_quiet()

    evidence = world.evidence()
    times = Counter(text.strip() for _, text in evidence.seen)
    said = [saying.number for saying in evidence.said]
    between = said[3:9]
    assert times == {f"re: #{number}": 2 if number in between else 1 for number in said}
    assert evidence.unfiled == 0
    assert "rollback_guard.older_copy_found" in world.log()
    mark = read_high_water_mark(home / "state" / "gateway-db.json")
    assert mark is not None
    assert mark.older_since is not None
    assert "answered once more" in (warning_of(home / "state" / "gateway-db.json", mark.older_since) or "")
    assert mark.at > EPOCH
