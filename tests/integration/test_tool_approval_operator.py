"""The operator decides about tools from the command line, and a wait for a person's yes is no stand-still."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread
import pytest

from gateway.operations.operation_context import OperationContext
from tests.command_line import squidbot
from tests.integration.test_tool_approval import BOB, Wishful, Writer, answers, asking, question


def operations(one):
    built = one.built
    return OperationContext(built.store, built.memory, questions=built.store.approvals)


async def command(home, *arguments):
    """Exit code and words of a command on a home without a daemon."""

    done = await anyio.to_thread.run_sync(partial(squidbot, home, *arguments))
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("yes", [True, False])
async def test_the_operator_decides_while_it_runs(tmp_path, yes):
    """Listed with who asked; decided once, whatever is said later; a name that nobody has is an error."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        desk = operations(one)
        [row] = (await desk.call("calls_list", {}))["rows"]
        first = await desk.call("calls_decide", {"call": f"`{name.upper()}`", "yes": yes, "why": "as I said"})
        again = await desk.call("calls_decide", {"call": name, "yes": not yes})
        (answer,) = await answers(one, f"dm-{BOB}", 1)
        left = (await desk.call("calls_list", {}))["rows"]

    assert (row["name"], row["tool"], row["asked"]) == (name, "write_down", [BOB])
    assert (first["changed"], again["changed"]) == (True, False)
    assert first["call"]["verdict"] == again["call"]["verdict"] == ("approved" if yes else "refused")
    assert left == []
    assert tool.written == (["it"] if yes else [])
    assert answer == "so: wrote it" if yes else "as I said" in answer


async def test_the_operator_decides_while_nothing_runs(tmp_path):
    """`squidbot inbox list --held`, `inbox approve a…` on the home folder; the tool runs at the next start."""
    tool, model = Writer(), Wishful()
    async with asking(tmp_path, tool, model=model) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        server = one.server
    listed = await command(tmp_path, "inbox", "list", "--held")
    status = await command(tmp_path, "status")
    nothing = await command(tmp_path, "inbox", "approve", "a000000")
    approved = await command(tmp_path, "inbox", "approve", name)
    rejected = await command(tmp_path, "inbox", "reject", name)
    after = await command(tmp_path, "inbox", "list", "--held")
    async with asking(tmp_path, tool, model=model, server=server) as one:
        await answers(one, f"dm-{BOB}", 1)

    assert listed[0] == 0
    assert all(word in listed[1] for word in (name, "write_down", BOB))
    assert "nothing waits" not in listed[1]
    assert "tool calls that wait for approval: 1 (squidbot inbox list --held)" in status[1]
    assert nothing[0] != 0
    assert "no tool call a000000 waits" in nothing[1]
    assert approved == (0, f"call {name} of write_down is approved, which counts when the daemon runs\n")
    assert rejected == (1, f"call {name} of write_down was approved before\n")
    assert "nothing waits for your decision" in after[1]
    assert tool.written == ["it"]


async def test_who_waits_for_a_yes_waits_for_nobody_else(tmp_path):
    """
    No age is counted of what waits for a person, so no alert comes of it; that of others is, and of this one again as
    soon as it is decided.
    """
    async with asking(tmp_path, Writer()) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        waiting = await one.built.store.maintenance.stats()
        store = one.built.store
    # Nobody works on anything any more.
    async with asking(tmp_path, Writer(), server=one.server, channels={}) as one:
        store = one.built.store
        still = await store.maintenance.stats()
        await operations(one).call("calls_decide", {"call": name, "yes": True})
        decided = await store.maintenance.stats()

    assert (waiting.oldest_unanswered_s, waiting.waiting_for_yes) == (None, 1)
    assert (still.oldest_unanswered_s, still.waiting_for_yes) == (None, 1)
    assert decided.oldest_unanswered_s is not None
    assert decided.waiting_for_yes == 0


async def test_each_question_of_a_conversation_counts(tmp_path):
    """As `inbox list --held` lists them, and as the console counts."""
    async with asking(tmp_path, Writer()) as one:
        for count in (1, 2):
            one.server.say(BOB, "write it")
            await question(one, f"dm-{BOB}", count)
        stats = await one.built.store.maintenance.stats()
        listed = (await operations(one).call("calls_list", {}))["rows"]
    assert (stats.waiting_for_yes, len(listed)) == (2, 2)
