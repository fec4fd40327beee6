"""
MEMORY.md was a folder (a slip in a shell, or of a program that keeps files in step). Reading it counted as a
disk that is full: every message of its owner was put back for later, for ever, and nobody was told why.
"""

from __future__ import annotations

from pathlib import Path

from tests.proactive_world import ANN, house


async def test_the_owner_is_answered_and_told_once(tmp_path: Path) -> None:
    """Both questions end in an answer, and one note says what is wrong."""
    (tmp_path / "workspace" / "MEMORY.md").mkdir(parents=True)
    async with house(tmp_path, heartbeat={"enabled": False}) as home:
        for number in (1, 2):
            home.chat.say(ANN, f"Question {number}")
            await home.until(
                lambda number=number: sum(one.kind == "reply" for one in home.chat.delivered) == number
            )
        await home.until(home.alerts)
        (told,) = home.alerts()

    assert "MEMORY.md is a folder" in told.text
    assert "check --data" in told.text
