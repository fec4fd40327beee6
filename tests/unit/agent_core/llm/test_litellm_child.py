"""litellm stays outside of the daemon, and its own process sees nothing of what is not its business."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import anyio
import pytest

from agent_core.llm.factory import build_models
from agent_core.llm.litellm.litellm_client import LiteLLMClient, LiteLLMProcess
from agent_core.llm.model_config import LLMSpec
from agent_core.models import Message
from tests.clock import LoopClock, ManualClock
from tests.contract.llm import collect
from tests.doubles.openai_server import Call, FakeOpenAI, Say

# ── what litellm sees ──

SPY = """
import asyncio, json, os, socket, sys

def tried(what):
    try:
        return str(what())
    except BaseException as error:
        return type(error).__name__

home, control, parent = json.load(open(os.path.join(os.path.dirname(__file__), "facts.json")))
LOOKED = {
    "home": tried(lambda: open(os.path.join(home, "secret")).read()),
    "list": tried(lambda: os.listdir(home)),
    "write": tried(lambda: open(os.path.join(home, "new"), "w")),
    "tmp": tried(lambda: open("/tmp/from-litellm", "w")),
    "control": tried(lambda: socket.socket(socket.AF_UNIX).connect(control)),
    "environ of the daemon": tried(lambda: open(f"/proc/{parent}/environ", "rb").read()),
    "signal": tried(lambda: os.kill(parent, 0)),
    "environ": sorted(os.environ),
    "cwd": os.getcwd(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "network": tried(lambda: socket.socket(socket.AF_INET).close()),
}

async def acompletion(**request):
    class Said:
        usage = None
        content, tool_calls, delta, finish_reason = json.dumps(LOOKED), None, None, "stop"
    Said.message = Said
    Said.choices = [Said]
    return Said
"""


async def looked_around(tmp_path, monkeypatch, **more):
    """What a package called litellm finds out in its process."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("matrix token")
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(home / "s"))
    control.listen()
    package = tmp_path / "site" / "litellm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SPY)
    (package / "facts.json").write_text(json.dumps([str(home), str(home / "s"), os.getpid()]))
    monkeypatch.setenv("MATRIX_PASSWORD", "secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "for another provider")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    start = f"import sys; sys.path.insert(0, {str(package.parent)!r}); {more.pop('before', '')}"
    run = "from agent_core.llm.litellm import litellm_child as child; child.main()"
    process = LiteLLMProcess(**more)
    process.command = [sys.executable, "-c", f"{start}\n{run}"]
    try:
        pieces = [piece async for piece in process.ask({"model": "m"}, stream=False, cost=False)]
        return json.loads(pieces[0].text), process.ready_report
    finally:
        await process.aclose()
        control.close()


async def test_litellm_sees_neither_the_home_nor_the_daemon(tmp_path, monkeypatch):
    """A package that was made to steal finds nothing: no file, no variable, no socket, no process."""
    found, told = await looked_around(tmp_path, monkeypatch)

    if not told["landlock"] or not told["seccomp"]:
        pytest.skip("this kernel confines nobody")
    assert {found[name] for name in ("home", "list", "write", "tmp", "environ of the daemon")} == {
        "PermissionError"
    }
    assert found["control"] == "PermissionError"
    if told["landlock"] >= 6:
        assert found["signal"] == "PermissionError"
    assert found["network"] == "None"


async def test_its_environment_holds_no_secret(tmp_path, monkeypatch):
    """Only what every program needs, and what a provider without a key of its own is said to need."""
    found, _ = await looked_around(tmp_path, monkeypatch)
    assert {"MATRIX_PASSWORD", "ANTHROPIC_API_KEY", "SQUIDBOT_HOME"}.isdisjoint(found["environ"])
    assert {"PATH", "HTTPS_PROXY", "PYTHONPATH"} <= set(found["environ"])
    assert found["cwd"] == "/"


async def test_a_provider_without_a_key_gets_its_variables(tmp_path, monkeypatch):
    """As before: litellm looks into the usual variable by itself."""
    found, _ = await looked_around(tmp_path, monkeypatch, variables=["ANTHROPIC_"])
    assert "ANTHROPIC_API_KEY" in found["environ"]
    assert "MATRIX_PASSWORD" not in found["environ"]


async def test_without_the_fence_the_spy_sees_it_all(tmp_path, monkeypatch):
    """Negative control: the same package in a process that was not confined."""
    before = (
        "from agent_core.llm.litellm import litellm_child as child; "
        "child.confine = lambda paths: {'landlock': 0, 'seccomp': 0}"
    )
    found, _ = await looked_around(tmp_path, monkeypatch, before=before)
    assert found["home"] == "matrix token"
    assert found["control"] == "None"
    assert "secret" in found["environ of the daemon"] or found["environ of the daemon"].startswith("b")


def test_which_variables_are_handed_over():
    """Those of providers that are used and have no key here."""
    spec = LLMSpec.model_validate(
        {
            "providers": {"a": {}, "b": {"api_key": "k"}},
            "models": {
                "one": {"provider": "a", "model": "bedrock/x"},
                "two": {"provider": "b", "model": "anthropic/x"},
                "three": {"provider": "a", "model": "cohere/x"},
            },
            "pools": {"main": ["one", "two"]},
        }
    )
    assert set(build_models(spec, ManualClock()).litellm._variables) == {"BEDROCK_", "AWS_"}


# ── the real one ──


@pytest.mark.slow  # it takes seconds of processor to start
async def test_the_real_one_is_warm_and_asks_nobody(tmp_path):
    """
    It starts, without a stranger on the line, and gives a streamed answer with a tool call; the loop goes
    on.
    """
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    process = LiteLLMProcess()
    async with FakeOpenAI() as fake, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        async with anyio.create_task_group() as starts:
            starts.start_soon(process.start)
            starts.start_soon(process.start)
        assert ticks > 20
        assert process.ready_report["trouble"] == ""
        fake.plan(Say("well ", calls=[Call("memory_write", '{"content": "- tea"}')]))
        client = LiteLLMClient("openai/x", clock=LoopClock(), process=process, api_base=fake.api_base)
        chunks = await collect(client, [Message(role="user", content="hi")])
        pid = process.pid
        await process.aclose()
        tasks.cancel_scope.cancel()

    assert [type(chunk).__name__ for chunk in chunks] == ["str", "ToolCall", "Usage"]
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
