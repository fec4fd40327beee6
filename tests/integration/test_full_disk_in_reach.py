"""A full disk while a skill is added, an assistant is imported, and a watch looks: one sentence, and later all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind
from tests import foreign_homes
from tests.clock import ManualClock
from tests.command_line import answer, squidbot
from tests.home_damage import fill
from tests.integration.schedule_world import START, later, said, scheduled
from tests.integration.test_watches import looked
from tests.proactive_world import ANN
from tests.unit.agent_core.skills.sources import FILES, TEA, folder
from tests.unit.gateway.operations.test_import import NewHome

pytestmark = pytest.mark.integration
ROOM = (0, 6_000, 20_000, 60_000)
"""Bytes that are left, so that different writes are the first that fail."""


def leave(disk: Path, room: int) -> Path:
    ballast = fill(disk)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - room)
    return ballast


def refused(home: Path, *words: str) -> None:
    """A command that fails, in one sentence about the disk."""
    done = squidbot(home, *words)
    assert done.returncode, done.stdout
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()[-1:] if "skills" in words else done.stderr.splitlines()
    assert re.search(r"disk|No space left", line), line


@pytest.mark.parametrize("room", ROOM)
def test_a_skill_is_added_whole_or_not(small_disk: Path, tmp_path: Path, room: int) -> None:
    """It says that the disk is full; the version before stays, and with room the same command does it."""
    home = NewHome(small_disk / "home").home.root
    source = folder(tmp_path / "tea")
    added = home / "workspace" / "skills" / "tea"
    assert squidbot(home, "skills", "add", str(source), "--yes").returncode == 0
    after = {**FILES, "SKILL.md": TEA + b"Wait.\n", "references/long.md": b"x\n" * 40_000}
    folder(source, after)
    ballast = leave(small_disk, room)
    refused(home, "skills", "add", str(source), "--yes")
    assert (added / "SKILL.md").read_bytes() == TEA
    assert [one.name for one in added.parent.iterdir() if not one.name.startswith(".")] == ["tea"]
    ballast.unlink()
    rows = answer(home, "skills", "list")
    assert rows["problems"] == [] and "tea" in [one["name"] for one in rows["skills"]]
    assert squidbot(home, "skills", "add", str(source), "--yes").returncode == 0
    assert {
        str(one.relative_to(added)): one.read_bytes() for one in added.rglob("*") if one.is_file()
    } == after


@pytest.mark.parametrize("room", ROOM)
def test_an_import_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path, room: int) -> None:
    """In the end there is what an import in one piece brings."""
    old = foreign_homes.openclaw(tmp_path / "old")
    whole = NewHome(tmp_path / "whole")
    whole.bring_all("openclaw", old)
    new = NewHome(small_disk / "home")
    code = new.bring("openclaw", old)["code"]
    ballast = leave(small_disk, room)
    refused(new.home.root, "import", "openclaw", str(old), "--now", code)
    ballast.unlink()
    new.bring("openclaw", old, code)
    assert new.all("openclaw") == whole.all("openclaw")


async def test_a_watch_says_later_what_it_could_not_keep(small_disk: Path) -> None:
    """Nothing is said that is not committed; with room the news comes once."""
    clock = ManualClock(START)
    async with scheduled(small_disk, clock) as home:
        await home.asked(ANN, "hello")
        file = home.checklist.parent / "notes.md"
        file.write_text("- milk\n")
        place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), "bot", ANN, persons=(ANN,))
        request = TriggerRequest(at="every 1h", watch="file:notes.md")
        job = await home.built.proactive.jobs.add(place, request, text="News:", kind=JobKind.REMIND)
        await looked(home, clock, job, seconds=5)
        file.write_text("- milk\n- bread\n")
        ballast = fill(small_disk)
        before = (await home.plans.job(job.id)).last_at
        for _ in range(3):
            await later(home, clock, hours=1)
        assert (await home.plans.job(job.id)).last_at == before
        assert len(said(home, ANN)) == 1
        ballast.unlink()
        await looked(home, clock, job)
        await looked(home, clock, job)
        await home.until(lambda: len(said(home, ANN)) == 2)
        assert said(home, ANN)[1] == "News:\n\n- - bread"
