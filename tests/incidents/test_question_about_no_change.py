"""
A call that would change nothing is not asked about. After a page a model noted again what it knew, and the phone rang
with "MEMORY.md: no change".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_everyday_questions import Honest, Page, asks, house, note, say


@pytest.mark.parametrize(
    ("call", "other", "kept"),
    [
        (note("Likes tea."), note("Likes coffee."), "MEMORY.md"),
        (
            ("write_file", {"path": "a.md", "content": "tea"}),
            ("write_file", {"path": "a.md", "content": "coffee"}),
            "a.md",
        ),
    ],
    ids=["memory", "file"],
)
async def test_nothing_is_asked_and_nothing_is_done(
    tmp_path: Path, call: tuple[str, dict[str, str]], other: tuple[str, dict[str, str]], kept: str
) -> None:
    """The model is told that it is so already; the control is a call that changes something."""
    plan = {"page": ("read_page", {}), "tea": call, "coffee": other}
    async with house(tmp_path, Honest(plan), Page("The weather is fine.")) as one:
        await say(one, "tea")
        before = (tmp_path / "workspace" / kept).read_text()
        await say(one, "the page")
        again = await say(one, "tea again")
        assert not asks(again)
        assert "nothing was done" in again.text
        assert (tmp_path / "workspace" / kept).read_text() == before
        assert asks(await say(one, "coffee"))
