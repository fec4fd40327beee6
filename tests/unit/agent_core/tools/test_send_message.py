"""Whom a message reaches: the one whom the person has seen, whoever takes a name meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from agent_core.errors import ToolRetry
from agent_core.tools.effects import approving
from agent_core.tools.send_message import SendMessageTool


class Renaming:
    """A messenger that finds somebody else by the name "Eve" from a certain look-up on."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.sent: list[str] = []

    def is_own(self, to: str) -> bool:
        return to == "email"

    def add_sender(self, to: str, text: str) -> str:
        return text

    def describe(self, recipient: str) -> str:
        return recipient

    async def recipient(self, to: str) -> str:
        if to != "Eve":
            return to
        self.left -= 1
        return "matrix:@eve:hs.test" if self.left >= 0 else "matrix:@mallory:hs.test"

    async def is_posted(self, key: str) -> bool:
        return False

    async def send(self, to: str, text: str, files: Any, *, key: str, origins: Any) -> str:
        self.sent.append(await self.recipient(to))
        return "It is on its way."


@pytest.mark.parametrize(("after", "reached"), [(1, []), (2, ["matrix:@eve:hs.test"])])
async def test_a_name_that_somebody_takes_after_the_yes_reaches_nobody_else(
    after: int, reached: list[str]
) -> None:
    """Neither between the yes and the call, nor between its comparison and the sending."""
    messenger, nothing = Renaming(after), None
    tool = SendMessageTool(messenger, nothing, nothing)  # type: ignore[arg-type] - there are no files
    wish = {"to": "Eve", "text": "The code is 1234."}
    shown = await tool.review(**wish)
    assert "@eve:hs.test" in shown.text
    with approving(shown.state):
        assert (await tool.execute(**wish)).is_error is not bool(reached)
    assert messenger.sent == reached


async def test_the_owner_is_written_to_as_the_model_said_it() -> None:
    """The channel chooses among the owner's addresses."""
    messenger, nothing = Renaming(0), None
    tool = SendMessageTool(messenger, nothing, nothing)  # type: ignore[arg-type] - there are no files
    assert not (await tool.execute(to="email", text="x")).is_error
    assert messenger.sent == ["email"]


async def test_what_was_posted_is_so_whatever_has_become_of_the_recipient() -> None:
    """A step that is repeated does not say that nothing was sent, because a contact is gone; the control asks."""

    class Gone(Renaming):
        async def recipient(self, to: str) -> str:
            raise ToolRetry("Nothing was sent: nobody is known by that name.")

    class Posted(Gone):
        async def is_posted(self, key: str) -> bool:
            return True

    nothing = None
    tool = SendMessageTool(Posted(0), nothing, nothing)  # type: ignore[arg-type] - there are no files
    assert "on its way to Bob" in (await tool.execute(to="Bob", text="x")).content
    tool = SendMessageTool(Gone(0), nothing, nothing)  # type: ignore[arg-type] - there are no files
    with pytest.raises(ToolRetry):
        await tool.execute(to="Bob", text="x")
