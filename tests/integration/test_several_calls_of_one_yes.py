"""One yes for several calls, of which the first change what a later one is about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_core.models import ToolCall
from tests.doubles.agent import StreamingModel
from tests.integration.gateway_world import world
from tests.integration.test_answers_in_words import said
from tests.integration.test_shell import ANN, needs_landlock, settings, tried
from tests.integration.test_tool_approval import question

pytestmark = [pytest.mark.integration, needs_landlock]
DM = f"dm-{ANN}"
WRITE = ("write_file", {"path": "work/run.sh", "content": "touch new\n"})
RUN = ("shell", {"command": "sh run.sh"})
EDITS = [("edit_file", {"path": "plan.txt", "old": old, "new": new}) for old, new in (("a", "b"), ("c", "d"))]


class Bundle(StreamingModel):
    """A model that makes the calls of the message all at once, and says what came of the last."""

    async def answer(self, messages, tools):
        last = messages[-1]
        loaded = "was not loaded" in last.content
        asked = next(each for each in reversed(messages) if each.role == "user")
        if last.role == "user" or loaded:
            calls = json.loads(re.findall(r"\[\[.*\]\]", asked.content)[0])
            for number, (name, arguments) in enumerate(calls):
                yield ToolCall(id=f"{len(messages)}-{number}", name=name, arguments=arguments)
        else:
            yield f"so: {last.content}"


def at_home(tmp_path: Path) -> Path:
    work = tmp_path / "workspace" / "work"
    work.mkdir(parents=True)
    (tmp_path / "workspace" / "plan.txt").write_text("a\nc\n")
    return work


def asking(*names: str) -> dict[str, Any]:
    given = settings()
    return {**given, "tools": {**given["tools"], "require_approval": list(names)}}  # type: ignore[dict-item]


async def test_a_script_that_the_question_writes_is_run_without_another(tmp_path: Path) -> None:
    """The question shows both, and one yes is for both."""
    work = at_home(tmp_path)
    given = asking("write_file", "shell")
    async with world(tmp_path, name="matrix", settings=given, models={"demo": Bundle()}) as one:
        assert (await tried(one))["ready"] is True
        one.server.say(ANN, json.dumps([WRITE, RUN]))
        notice, _ = await question(one, DM)
        assert "touch new" in notice.text and "sh run.sh" in notice.text
        one.server.say(ANN, "yes to all")
        assert (await said(one, DM, "so: ")).startswith("so: Exit status 0")
    assert (work / "new").exists()


async def test_two_edits_of_one_file_are_one_question(tmp_path: Path) -> None:
    """Each is shown; the second changes what the first has left. Their tool is loaded before both."""
    at_home(tmp_path)
    given = asking("edit_file")
    async with world(tmp_path, name="matrix", settings=given, models={"demo": Bundle()}) as one:
        one.server.say(ANN, json.dumps(EDITS))
        await question(one, DM)
        one.server.say(ANN, "yes")
        assert await said(one, DM, "so: Done")
    assert (tmp_path / "workspace/plan.txt").read_text() == "b\nd\n"


@pytest.mark.parametrize("when", ["before the yes", "between the calls"])
async def test_what_somebody_else_changes_is_asked_about_again(tmp_path: Path, when: str) -> None:
    """Before the first call, or after it: the call that it changes waits."""
    work = at_home(tmp_path)
    given = asking("write_file", "shell")
    first = WRITE if when == "before the yes" else ("write_file", {"path": "other.txt", "content": "x"})
    async with world(tmp_path, name="matrix", settings=given, models={"demo": Bundle()}) as one:
        assert (await tried(one))["ready"] is True
        middle = ("shell", {"command": "echo touch evil > run.sh"})
        calls = [first, RUN] if when == "before the yes" else [first, middle, RUN]
        one.server.say(ANN, json.dumps(calls))
        _, name = await question(one, DM)
        if when == "before the yes":
            (work / "run.sh").write_text("touch evil\n")
        one.server.say(ANN, "yes")
        notice, again = await question(one, DM, 2)
        assert "Files have changed since your yes, so I ask again." in notice.text and again != name
    assert not (work / "new").exists() and not (work / "evil").exists()
