"""
The owner said yes to a change of a file, whose difference the question showed, and the process died right after that
was noted. Until the restart another program wrote into the file: the call was taken up again, and deleted, edited or
moved what nobody had been shown.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.tools.effects import approving, review_of
from tests.file_tools_world import FileDesk

CALLS: dict[str, dict[str, Any]] = {
    "delete_file": {"path": "plan.md"},
    "edit_file": {"path": "plan.md", "old": "plan", "new": "end"},
    "move_file": {"path": "plan.md", "to": "old.md"},
}


@pytest.fixture
def desk(tmp_path):
    desk = FileDesk(tmp_path / "home")
    (desk.ws / "plan.md").write_text("the plan")
    return desk


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("name", CALLS)
async def test_only_what_was_shown_is_changed(desk: FileDesk, name: str, changed: bool) -> None:
    """By the process after the one that had asked. The control: nobody else has changed it."""
    review = await review_of(desk.tools[name], CALLS[name])
    assert review is not None
    desk.restart()
    desk.begin("turn1")
    if changed:
        (desk.ws / "plan.md").write_text("the plan, and what matters")
    with approving(review.state):
        assert (await desk(name, **CALLS[name])).is_error is changed
    if changed:
        assert (desk.ws / "plan.md").read_text() == "the plan, and what matters"
        assert [file.name for file in desk.ws.iterdir()] == ["plan.md"]


async def test_a_file_that_came_meanwhile_is_not_written_over(desk: FileDesk) -> None:
    """What was shown was a new file."""
    new = {"path": "new.md", "content": "ours"}
    review = await review_of(desk.tools["write_file"], new)
    assert review is not None
    (desk.ws / "new.md").write_text("theirs")
    await desk.ok("read_file", path="new.md")
    with approving(review.state):
        assert (await desk("write_file", **new)).is_error
    assert (desk.ws / "new.md").read_text() == "theirs"
    await desk.ok("write_file", **new)  # the control: nobody was asked
