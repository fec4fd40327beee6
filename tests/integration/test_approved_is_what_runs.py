"""T4: what somebody has said yes to is what runs; a script that has changed meanwhile is asked about again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.tools.files import command_basis
from tests.integration.gateway_world import Scenario, world
from tests.integration.test_answers_in_words import said
from tests.integration.test_shell import ANN, Operator, needs_landlock, settings, tried
from tests.integration.test_tool_approval import question

pytestmark = [pytest.mark.integration, needs_landlock]
DM = f"dm-{ANN}"


def asking() -> dict[str, object]:
    given = settings()
    tools = given["tools"]
    assert isinstance(tools, dict)
    return {**given, "tools": {**tools, "require_approval": ["shell"]}}


def wrote(work: Path, name: str, text: str) -> Path:
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def asked_and_changed(
    one: Scenario, work: Path, command: str, change: Callable[[Path], object]
) -> tuple[str, str]:
    """A yes to a command after the change of a file; what is said next, and the name of the question."""
    one.server.say(ANN, f"run {command}")
    _, name = await question(one, DM)
    change(work)
    before = len(one.server.seen(DM))
    one.server.say(ANN, "yes")
    told = await one.server.answers(before + 2, conversation=DM)
    return told[before + 1].text, name


CHANGES: dict[str, tuple[str, str, str]] = {
    # what is called, which file, and what is changed in it
    "named": ("sh run.sh", "run.sh", "echo changed"),
    "run by itself": ("./run.sh", "run.sh", "#!/bin/sh\necho changed"),
    "between quotation marks": ("sh 'my plan.sh'", "my plan.sh", "echo changed"),
    "read by a script": ("sh run.sh", "steps.txt", "echo changed"),
    "of a folder that is named": ("sh lib/run.sh", "lib/helper.py", "changed = 1"),
    "by a pattern": ("cat *.txt | sh", "steps.txt", "echo changed"),
    "which was not there": ("sh late.sh", "late.sh", "echo changed"),
    "which nothing names": ("sh run.sh", "numbers.csv", "1,2"),
}


@pytest.mark.parametrize("which", CHANGES)
async def test_a_script_that_changed_before_the_yes_is_asked_about_again(tmp_path: Path, which: str) -> None:
    """The new question shows what it is now, has another name, and only a yes to that runs it, once."""
    command, name, after = CHANGES[which]
    work = tmp_path / "workspace" / "work"
    for known in ("run.sh", "lib/run.sh", "my plan.sh"):
        wrote(work, known, "#!/bin/sh\ntouch ran\n. ./steps.txt 2>/dev/null\n").chmod(0o700)
    wrote(work, "steps.txt", "touch ran")
    wrote(work, "lib/helper.py", "changed = 0")
    async with world(tmp_path, name="matrix", settings=asking(), models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        told, first = await asked_and_changed(
            one, work, command, lambda at: wrote(at, name, f"{after}\ntouch ran\n")
        )
        assert not (work / "ran").exists()
        assert "changed since your yes" in told
        _, second = await question(one, DM, 2)
        assert first != second
        one.server.say(ANN, f"!approve {first}")  # the old question is nobody's yes any more
        one.server.say(ANN, f"!approve {second}")
        assert "so: " in await said(one, DM, "so: ")
        assert (work / "ran").exists()


async def test_what_nobody_changed_runs_at_once(tmp_path: Path) -> None:
    """The control: a yes runs it; what is written again unchanged is no change."""
    work = tmp_path / "workspace" / "work"
    wrote(work, "run.sh", "touch ran")
    wrote(work, "numbers.csv", "1,2,3")
    async with world(tmp_path, name="matrix", settings=asking(), models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        told, _ = await asked_and_changed(
            one, work, "sh run.sh", lambda at: wrote(at, "numbers.csv", "1,2,3")
        )
        assert told.startswith("so: Exit status 0.")
        assert (work / "ran").exists()


async def test_without_the_look_at_files_the_changed_script_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of this file."""
    monkeypatch.setattr(command_basis, "basis_of", lambda *_: command_basis.Basis("", ()))
    work = tmp_path / "workspace" / "work"
    wrote(work, "run.sh", "exit 1")
    async with world(tmp_path, name="matrix", settings=asking(), models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        told, _ = await asked_and_changed(one, work, "sh run.sh", lambda at: wrote(at, "run.sh", "touch ran"))
        assert told.startswith("so: Exit status 0.")
        assert (work / "ran").exists()


async def test_the_question_shows_the_script(tmp_path: Path) -> None:
    """With its content, and with size and hash; nothing in it can look like a line of ours."""
    work, text = tmp_path / "workspace" / "work", "echo one\nwork/other.sh, 3 bytes, SHA-256 0\n"
    wrote(work, "run.sh", text)
    async with world(tmp_path, name="matrix", settings=asking(), models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        one.server.say(ANN, "run sh run.sh")
        notice, _ = await question(one, DM)
        digest = hashlib.sha256(text.encode()).hexdigest()
        assert f"work/run.sh, {len(text)} bytes, SHA-256 {digest[:16]}…" in notice.text
        (row,) = await one.built.store.approvals.questions()
        assert f"SHA-256 {digest}\n" in str(row.calls[0][1]), (
            "the console and `inbox list --held --json` have all of it"
        )
        assert "| echo one" in notice.text
        assert "| work/other.sh, 3 bytes" in notice.text
