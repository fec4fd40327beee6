"""Commands in the background on a whole gateway, in the sandbox of the kernel."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import anyio
import pytest

from agent_core.children.order import landlock_version
from agent_core.messages import SessionKey
from tests.doubles.loopback import LoopbackServer
from tests.integration.background_world import (
    ANN,
    Worker,
    house,
    started_in,
    texts,
    until,
    until_idle,
)
from tests.integration.gateway_world import Scenario
from tests.integration.test_tool_approval import question

needs_landlock = pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)


@needs_landlock
async def test_a_command_in_the_background_says_once_what_came_of_it(tmp_path: Path) -> None:
    """Meanwhile its output can be read, and afterwards it is in a file of the workspace."""
    model = Worker()
    async with house(tmp_path, model, tools={"shell": {"allow": "owner"}}) as one:
        await sandbox_of(one)
        job = started_in(
            (
                await one.asked(
                    "behind echo one; while ! test -e go; do sleep 0.05; done; exit 3", person=ANN
                )
            ).text
        )
        log = tmp_path / "workspace" / "work" / "jobs" / f"{job}.log"
        await until(lambda: log.exists() and log.read_text() == "one\n")
        shown = (await one.asked(f"job_output {job}", person=ANN)).text
        assert f"{job}: command, running" in shown
        assert "\none\n" in shown
        (tmp_path / "workspace" / "work" / "go").touch()
        await until(lambda: any("Background command" in text for text in texts(one)))
        told = next(text for text in texts(one) if "Background command" in text)
        assert told == (
            f"Background command `{job}`: `echo one; while ! test -e go; do sleep 0.05; done; exit 3`\n\n"
            "Exit status 3.\n\n```\none\n```"
        )
        place = SessionKey("matrix", f"dm-{ANN}")
        await one.built.history.flush(place)
        kept = (await one.built.memory.load_history(str(place), max_messages=10)).messages
        assert any("Exit status 3" in line.content for line in kept)


@needs_landlock
async def test_a_long_output_fits_a_phone_and_is_kept(tmp_path: Path) -> None:
    """Both ends are shown, whatever marks stand in it, and where all of it is."""
    async with house(tmp_path, Worker(), tools={"shell": {"allow": "owner"}}) as one:
        await sandbox_of(one)
        job = started_in((await one.asked("behind echo '```'; seq 1 9000", person=ANN)).text)
        await until(lambda: any("Background command" in text for text in texts(one)))
        told = next(text for text in texts(one) if "Background command" in text)
        assert len(told) < 2_000 and "````\n```\n1\n" in told and "\n9000\n[" in told
        assert told.endswith(f"All of it is in the file `work/jobs/{job}.log`.")


@needs_landlock
async def test_a_command_is_ended_by_a_restart_and_says_so(tmp_path: Path) -> None:
    """It is not begun again, and nobody is told that it still runs."""
    model, server = Worker(), LoopbackServer()
    shell = {"shell": {"allow": "owner"}}
    async with house(tmp_path, model, server, tools=shell) as one:
        await sandbox_of(one)
        job = started_in((await one.asked("behind echo x >> begun; sleep 60", person=ANN)).text)
        await until(lambda: (tmp_path / "workspace" / "work" / "begun").exists())
    async with house(tmp_path, model, server, tools=shell) as one:
        await until(lambda: len(texts(one)) == 2)
        assert "restart of squidbot ended it" in texts(one)[1]
        listed = (await one.asked("!jobs", person=ANN)).text
        assert (
            f"{job}: command, failed: The restart of squidbot ended it, and it does not run again, st"
            in listed
        )
    assert (tmp_path / "workspace" / "work" / "begun").read_text() == "x\n"


@needs_landlock
async def test_a_stopped_command_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Also what has left its process group."""
    model = Worker()
    async with house(tmp_path, model, tools={"shell": {"allow": "owner"}}) as one:
        await sandbox_of(one)
        command = "setsid sh -c 'while :; do date +%s%N > alive; sleep 0.05; done' & touch begun; sleep 60"
        job = started_in((await one.asked(f"behind {command}", person=ANN)).text)
        work = tmp_path / "workspace" / "work"
        await until(lambda: (work / "begun").exists() and (work / "alive").exists())
        assert f"`{job}` is stopped" in (await one.asked(f"!jobs stop {job}", person=ANN)).text
        await until_idle(one)
        await anyio.sleep(0.5)
        before = (work / "alive").read_text()
        await anyio.sleep(0.5)
        assert (work / "alive").read_text() == before
        assert not any("Background command" in text for text in texts(one))


@needs_landlock
@pytest.mark.parametrize("changed", [True, False])
async def test_an_approved_command_whose_script_changes_before_it_begins_is_not_run(
    tmp_path: Path, changed: bool
) -> None:
    """It waits behind another one; the yes was for what stood in the script then. The control runs."""
    work = tmp_path / "workspace" / "work"
    work.mkdir(parents=True)
    (work / "run.sh").write_text("touch ran")
    tools = {"shell": {"allow": "owner"}, "require_approval": ["run_in_background"]}
    async with house(tmp_path, Worker(), tools=tools, gateway={"max_concurrent_turns": 2}) as one:
        await sandbox_of(one)
        for count, command in enumerate(("sleep 600", "sh run.sh"), 1):
            one.server.say(ANN, f"behind {command}")
            notice, name = await question(one, f"dm-{ANN}", count)
            assert ("SHA-256" in notice.text) is (count == 2)
            one.server.say(ANN, f"!approve {name}")
            await until(lambda count=count: sum("Started as" in text for text in texts(one)) == count)
        if changed:
            (work / "run.sh").write_text("touch ran; touch more")
        first = started_in(next(text for text in texts(one) if "Started as" in text))
        assert f"`{first}` is stopped" in (await one.asked(f"!jobs stop {first}", person=ANN)).text
        await until(lambda: any("Background command" in text for text in texts(one)))
        (told,) = (text for text in texts(one) if "Background command" in text)
        rows = await one.built.store.receipts.newest()
    # What was not begun has no receipt.
    begun = [row for row in rows if row.tool == "background command"]
    assert len(begun) == (1 if changed else 2)
    assert ("files in the workspace have changed since its approval" in told) is changed
    assert (work / "ran").exists() is not changed
    assert not (work / "more").exists()


@needs_landlock
async def test_the_end_of_a_command_has_a_receipt_of_its_own(tmp_path: Path) -> None:
    """Exit, duration and what to do about it; in between it runs, and one that was killed is unknown."""
    server, shell = LoopbackServer(), {"shell": {"allow": "owner"}}

    async def of(one: Scenario) -> list[tuple[str, str, str]]:
        rows = await one.built.store.receipts.newest()
        return [(row.outcome.value, row.told, row.undo) for row in rows if row.tool == "background command"]

    async with house(tmp_path, Worker(), server, tools=shell) as one:
        await sandbox_of(one)
        job = started_in(
            (await one.asked("behind while ! test -e go; do sleep 0.05; done; exit 3", person=ANN)).text
        )
        with anyio.fail_after(60):
            while await of(one) != [("running", "", "")]:
                await anyio.sleep(0.02)
        (tmp_path / "workspace" / "work" / "go").touch()
        await until(lambda: any("Background command" in text for text in texts(one)))
        ((outcome, told, undo),) = await of(one)
        assert outcome == "done"
        assert re.fullmatch(r"Exit status 3\. It took \d+\.\d s\. It printed nothing\.", told)
        assert f"work/jobs/{job}.log" in undo
        shown = (await one.asked("!did", person=ANN)).text
        assert "background command" in shown
        assert "Exit status 3. It took" in shown
        (
            tmp_path / "workspace" / "work" / "go"
        ).unlink()  # nobody knows who wrote it, and it would be asked about
        await one.asked("!new", person=ANN)
        await one.asked("behind touch begun; sleep 60", person=ANN)
        await until(lambda: (tmp_path / "workspace" / "work" / "begun").exists())
    async with house(tmp_path, Worker(), server, tools=shell) as one:
        await until(lambda: any("restart of squidbot ended it" in text for text in texts(one)))
        await until_idle(one)
        assert [outcome for outcome, *_ in await of(one)] == ["unknown", "done"]


async def test_without_a_shell_no_command_runs_in_the_background(tmp_path: Path) -> None:
    """The tool is not even there."""
    model = Worker()
    async with house(tmp_path, model) as one:
        await one.asked("hello", person=ANN)
    assert "run_in_background" not in model.tools["conversation"]
    assert "start_job" in model.tools["conversation"]


async def sandbox_of(one: Scenario) -> None:
    """Wait until the sandbox was tried."""
    with anyio.fail_after(60):
        while (await one.built.status.read())["shell"]["ready"] is None:
            await anyio.sleep(0.02)
