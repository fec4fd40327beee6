"""
The room watched a draft grow that its owner was still to release: the answer was not shown as it came, but
all at once, as soon as the model had ended it.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from gateway.store.states import OutboxState
from tests.doubles.agent import StreamingModel
from tests.integration.gateway_world import world

ANN, BOB = "@ann:hs.test", "@bob:hs.test"


class Says(StreamingModel):
    """A model that says one thing, and takes a moment before it has ended."""

    async def answer(self, messages, tools):
        yield "a secret"
        await anyio.sleep(0.3)
        yield " of the owner"


@pytest.mark.parametrize("approval", ["all", "none"])
async def test_nobody_reads_a_draft_before_it_is_released(approval: str, tmp_path: Path) -> None:
    """Where nothing is to be released (the control), it is shown as it grows."""
    async with world(
        tmp_path,
        name="matrix",
        settings={"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}},
        models={"demo": Says()},
        approval={"matrix": approval},
    ) as there:
        await there.asked("!help", person=ANN)
        there.server.say(BOB, "hello")
        with anyio.fail_after(60):
            if approval == "all":
                while not await there.built.store.outbox.rows(states=[OutboxState.HELD]):
                    await anyio.sleep(0.02)
            else:
                await there.server.answers(1, conversation=f"dm-{BOB}")

        assert bool(there.server.previews) is (approval == "none")
