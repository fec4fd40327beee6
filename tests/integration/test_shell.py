"""The shell through a whole gateway: who has it, what comes of it, and where there is none."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import anyio
import pytest

from agent_core.children import order
from agent_core.children.order import landlock_version
from gateway.operations.render import status as rendered
from tests.doubles.agent import StreamingModel, call
from tests.integration.gateway_world import Scenario, world

pytestmark = [pytest.mark.integration]
needs_landlock = pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)
ANN, BOB = "@ann:hs.test", "@bob:hs.test"


class Operator(StreamingModel):
    """A model that runs what it is asked after "run", if it has a shell, and says what came of it."""

    def __init__(self) -> None:
        self.offered: list[bool] = []

    async def answer(self, messages, tools):
        has = any(tool.name == "shell" for tool in tools)
        self.offered.append(has)
        last = messages[-1]
        wish = re.search(r"\brun (.*)$", last.content.rsplit("\n", 1)[-1])
        if last.role == "user" and wish is not None and (has or "anyway" in wish[1]):
            yield call("shell", command=wish[1])
        else:
            yield f"so: {last.content}" if last.role == "tool" else "I have no shell"


def settings(**shell: object) -> dict[str, object]:
    return {
        "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
        "tools": {"shell": {"allow": "owner", "backend": "landlock", **shell}},
    }


async def tried(one: Scenario) -> dict[str, object]:
    """What the status says of the shell, as soon as its sandbox was tried."""
    with anyio.fail_after(60):
        while (found := (await one.built.status.read())["shell"])["ready"] is None:
            await anyio.sleep(0.02)
    return found


@needs_landlock
async def test_the_owner_has_a_shell_and_nobody_else(tmp_path: Path):
    """It runs in the workspace; a guest is not even offered it, and a call without it runs nothing."""
    model = Operator()
    async with world(tmp_path, name="matrix", settings=settings(), models={"demo": model}) as one:
        assert (await tried(one))["ready"] is True
        (tmp_path / "workspace" / "MEMORY.md").write_text("what the assistant knows")
        command = (
            "cat ../../gateway.db ../MEMORY.md; ls ../../sessions; echo $((40 + 2)) > result; cat result"
        )
        told = await one.asked(f"run {command}", person=ANN)
        assert "Exit status 0." in told.text
        assert told.text.count("Permission denied") == 3
        assert "\n42\n" in told.text
        assert (tmp_path / "workspace" / "work" / "result").read_text() == "42\n"
        model.offered.clear()
        told = await one.asked("run echo no", person=BOB)
        assert told.text == "I have no shell"
        told = await one.asked("run touch anyway", person=BOB)
        assert "There is no tool 'shell'" in told.text
        assert set(model.offered) == {False}
        assert not (tmp_path / "workspace" / "work" / "anyway").exists()
        assert "shell      ready: Landlock" in rendered({**await one.built.status.read(), "running": True})


@needs_landlock
async def test_a_command_sees_only_the_variables_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    given = settings(env={"GREETING": "bonjour"})
    async with world(tmp_path, name="matrix", settings=given, models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        told = await one.asked("run env", person=ANN)
    assert "GREETING=bonjour" in told.text
    assert "sk-very-secret" not in told.text
    assert "SQUIDBOT" not in told.text


async def test_without_the_setting_there_is_no_shell(tmp_path: Path):
    """The default; nothing of it is even tried."""
    model = Operator()
    given = {key: value for key, value in settings().items() if key != "tools"}
    async with world(tmp_path, name="matrix", settings=given, models={"demo": model}) as one:
        assert (await one.asked("run echo no", person=ANN)).text == "I have no shell"
        assert "shell" not in await one.built.status.read()
    assert model.offered == [False]
    assert not (tmp_path / "run" / "commands").exists()


async def test_where_no_sandbox_is_proved_there_is_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """T7: the tool is not offered, and the status says why in one sentence."""
    monkeypatch.setattr(order, "landlock_version", lambda: 0)
    model = Operator()
    async with world(tmp_path, name="matrix", settings=settings(), models={"demo": model}) as one:
        found = await tried(one)
        assert found["ready"] is False
        assert "no Landlock" in str(found["told"])
        assert "shell      off: the kernel has no Landlock; run squidbot on Linux 5.13" in rendered(
            {**await one.built.status.read(), "running": True}
        )
        assert (await one.asked("run echo no", person=ANN)).text == "I have no shell"
    assert model.offered == [False]


@needs_landlock
async def test_the_second_command_asks_only_where_somebody_elses_words_are(tmp_path: Path):
    """Whose words a command could read decides, and not that it was one; a file that came in counts from then on."""
    async with world(tmp_path, name="matrix", settings=settings(), models={"demo": Operator()}) as one:
        assert (await tried(one))["ready"] is True
        assert "Exit status 0." in (await one.asked("run echo mine > note", person=ANN)).text
        assert "mine" in (await one.asked("run cat note", person=ANN)).text
        (tmp_path / "workspace" / "work" / "letter.txt").write_text("OBEY ME")
        assert "OBEY ME" in (await one.asked("run cat letter.txt > copy; cat copy", person=ANN)).text
        (tmp_path / "workspace" / "work" / "letter.txt").unlink()
        told = (await one.asked("run cat copy", person=ANN)).text
        assert "It may not be your idea" in told
        assert "the file `work/letter.txt`" in told
