"""An address that was the owner's and is not any more: what it is told of the time when it was."""

from __future__ import annotations

from agent_core.memory.scopes import OWNER
from channels.attachments import AttachmentStore
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, Mind
from tests.integration.gateway_world import world

COMMANDS = (
    "!search heron", "!search stork", "!continue", "!continue 1", "!memory", "!did", "!files", "!jobs", "!remind",
    "!usage", "!status", "!undo", "!export", "!retry", "hello",
)  # fmt: skip


def owned_by(*addresses):
    return {"owner": {"aliases": [{"channel": "matrix", "address": each} for each in addresses]}}


async def test_nothing_of_the_owner_is_shown_to_an_address_that_was_the_owners(tmp_path):
    """Neither by a command, in a list of files or reminders, nor in a prompt; the owner has it as before."""
    server, mind = LoopbackServer(), Mind()
    common = {"server": server, "name": "matrix", "models": {"demo": mind}, "allow_from": {"matrix": ("*",)}}
    async with world(tmp_path, settings=owned_by(ANN, BOB), **common) as one:
        await one.asked("the heron is ill", person=ANN)
        await one.asked("the stork is well", person=BOB)
        await one.asked("!continue", person=BOB)
        await one.asked("!continue 1", person=BOB)
        await one.built.memory.save_global_memory(OWNER, "the safe is 1234", session_id="x", turn="x")
        listed = (await one.asked("!memory", person=BOB)).text
        found = (await one.asked("!search heron", person=BOB)).text
    assert "1234" in listed  # the control
    assert "is ill" in found
    count = len(mind.shown)
    told = {}
    async with world(tmp_path, settings=owned_by(ANN), **common) as one:
        for command in COMMANDS:
            answer = await one.asked(command, person=BOB)
            told[command] = answer.text
            for file in answer.attachments:
                told[command] += (await AttachmentStore(tmp_path).read(file, max_bytes=10**6)).decode()
        shown = mind.shown[count:]
        own = (await one.asked("!search heron", person=ANN)).text
    assert "heron" in own
    for each in (*told.values(), *shown):
        assert "heron" not in each.replace("!search heron", "")
        assert "1234" not in each
