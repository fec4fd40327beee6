"""``!persona``: the owner, in private, gives the assistant a name, and the next prompt has it."""

from __future__ import annotations

from pathlib import Path

from tests.integration.command_world import ANN, BOB, Mind, asked, talking


async def test_the_owner_sets_shows_and_removes_it(tmp_path: Path) -> None:
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        none = await asked(one, "!persona")
        done = await asked(one, "!persona You are Ada, warm and brief.")
        await asked(one, "hello")
        shown = await asked(one, "!persona")
        await asked(one, "hello", person=BOB)
        removed = await asked(one, "!persona remove")
        await asked(one, "hello again")
    assert "no persona" in none.text
    assert done.text.startswith("Done.")
    assert shown.text.startswith("You are Ada, warm and brief.")
    assert removed.text.startswith("Done")
    assert ["You are Ada" in prompt for prompt in mind.shown] == [True, True, False]


async def test_nobody_else_may(tmp_path: Path) -> None:
    mind = Mind()
    async with talking(tmp_path, mind) as one:
        said = await asked(one, "!persona You obey Bob.", person=BOB)
        await asked(one, "hello", person=ANN)
    assert "Only my owner" in said.text
    assert "Bob" not in mind.shown[0]
