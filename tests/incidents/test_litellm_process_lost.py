"""
The process in which litellm lives dies, hangs, lies or is orphaned: each costs one call at the most, never
the daemon, never a turn. The processes here speak the protocol by themselves, each with its own fault.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from agent_core.agent.loop import ask
from agent_core.children import service as child_process
from agent_core.children.service import CallFailed
from agent_core.errors import ModelUnavailable, ModelUnreadable
from agent_core.llm.litellm.litellm_client import LiteLLMClient, LiteLLMProcess
from agent_core.llm.pools import ModelPool
from agent_core.llm.streaming import AnswerLimits
from agent_core.models import Message
from tests.clock import LoopClock
from tests.doubles.agent import StreamingModel

pytestmark = pytest.mark.slow

ASK = [Message(role="user", content="hi")]
HEAD = """
import json, os, socket, struct, sys, time
link = socket.socket(fileno=int(sys.argv[-1]))
COUNT = sys.argv[1]
def give(frame):
    body = json.dumps(frame).encode()
    link.sendall(struct.pack(">I", len(body)) + body)
def read(size):
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more: os._exit(0)
        data += more
    return data
def take():
    return json.loads(read(struct.unpack(">I", read(4))[0]))
def starts():
    with open(COUNT, "a") as file: file.write("x")
    return os.path.getsize(COUNT)
def answer(call, *texts):
    give({"call": call["call"], "begun": True})
    for text in texts: give({"call": call["call"], "piece": {"text": text}})
    give({"call": call["call"], "end": True})
number = starts()
"""
GOOD = (
    "give({'ready': {}})\nwhile True:\n    call = take()\n    if 'call' in call: answer(call, 'fi', 'ne')\n"
)
DIES_ONCE = "give({'ready': {}})\ncall = take()\nif number == 1: os._exit(9)\nanswer(call, 'fine')\ntake()\n"
DIES_IN_THE_MIDDLE = (
    "give({'ready': {}})\ncall = take()\nif number > 1: answer(call, 'fine'); take()\n"
    "give({'call': call['call'], 'begun': True}); give({'call': call['call'], 'piece': {'text': 'so far'}})\n"
    "os._exit(9)\n"
)
DIES = "give({'ready': {}})\ntake()\nos._exit(9)\n"
BROKEN = "give({'broken': 'ImportError: no litellm'})\n"
SILENT = "time.sleep(600)\n"
DEAF = "give({'ready': {}})\ntime.sleep(600)\n"
CLINGS = (
    "give({'ready': {}})\nwhile True:\n    call = take()\n"
    "    if 'call' in call: give({'call': call['call'], 'begun': True})\n"
)
LETS_GO = CLINGS + "    else: give({'call': call['cancel'], 'end': True})\n"
LIES = {
    "no object": "link.sendall(struct.pack('>I', 2) + b'[]')",
    "no JSON": "link.sendall(struct.pack('>I', 2) + b'{x')",
    "deep": "link.sendall(struct.pack('>I', 200000) + b'[' * 200000)",
    "too large": "link.sendall(struct.pack('>I', 2**31))",
    "another's call": "give({'call': 77, 'piece': {'text': 'x'}})",
    "no text": "give({'call': call['call'], 'piece': {'text': 5}})",
    "no piece": "give({'call': call['call'], 'piece': []})",
    "no failure": "give({'call': call['call'], 'failure': {'text': {}}})",
    "nothing": "give({})",
}


def process_of(script: str, tmp_path: Path, **more: Any) -> LiteLLMProcess:
    process = LiteLLMProcess(**more)
    process.command = [sys.executable, "-I", "-c", HEAD + script, str(tmp_path / "count")]
    return process


def pool_of(process: LiteLLMProcess) -> ModelPool:
    limits = AnswerLimits(first_token_s=20, idle_s=20, total_s=25)
    client = LiteLLMClient("anthropic/x", clock=LoopClock(), process=process, limits=limits)
    return ModelPool("main", [("m", client)], LoopClock())


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "count").read_text())


async def text_of(process: LiteLLMProcess, *, stream: bool = True) -> str:
    return (await ask(pool_of(process), ASK, [], stream=stream, max_chars=1000)).text


async def has_ended(process: LiteLLMProcess) -> None:
    with anyio.fail_after(60):
        while process.pid is not None:
            await anyio.sleep(0.05)


@pytest.mark.parametrize(("script", "started"), [(GOOD, 1), (DIES_ONCE, 2), (DIES_IN_THE_MIDDLE, 2)])
async def test_a_turn_goes_on_in_a_new_process(script: str, started: int, tmp_path: Path) -> None:
    """Whether it dies before the answer or in it."""
    process = process_of(script, tmp_path)
    assert await text_of(process) == "fine"
    await process.aclose()
    assert starts(tmp_path) == started


@pytest.mark.parametrize("lie", LIES)
async def test_a_process_that_lies_is_given_up(lie: str, tmp_path: Path) -> None:
    """Once, and the next one is asked; what it said is not believed."""
    body = f"give({{'ready': {{}}}})\ncall = take()\nif number == 1:\n    {LIES[lie]}\n    time.sleep(600)\n"
    process = process_of(body + "answer(call, 'fine')\ntake()\n", tmp_path)
    assert await text_of(process) == "fine"
    await process.aclose()
    assert starts(tmp_path) == 2


async def test_an_answer_that_kills_it_twice_is_final(tmp_path: Path) -> None:
    """It is no outage, which would be tried for an hour."""
    process = process_of(DIES, tmp_path)
    with pytest.raises(ModelUnreadable) as caught:
        await text_of(process)
    await process.aclose()
    assert not caught.value.temporary
    assert "failed on its answer" in caught.value.public
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("script", [BROKEN, "os._exit(1)\n"])
async def test_one_that_cannot_start_says_so(script: str, tmp_path: Path) -> None:
    """The log has the reason, and the person gets a word after two starts."""
    process = process_of(script, tmp_path)
    with pytest.raises(ModelUnreadable, match="cannot be started"):
        await text_of(process)
    await process.aclose()
    assert starts(tmp_path) == 2


@pytest.mark.parametrize(
    ("script", "limit"), [(SILENT, "_START_LIMIT_S"), (DEAF, "_TAKE_UP_LIMIT_S")], ids=["start", "call"]
)
async def test_a_hung_one_is_killed(
    script: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, or when it takes no call up."""
    monkeypatch.setattr(child_process, limit, 1.5)
    process = process_of(script, tmp_path)
    with anyio.fail_after(60), pytest.raises(ModelUnreadable):
        await text_of(process)
    assert process.pid is None
    await process.aclose()


async def test_one_that_clings_to_a_call_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was left off and is not let go shows that nobody is at home; a good one lives on."""
    monkeypatch.setattr(child_process, "_LET_GO_LIMIT_S", 0.3)
    clinging, good = process_of(CLINGS, tmp_path), process_of(GOOD, tmp_path)
    for process in (clinging, good):
        pieces = process.ask({}, stream=True, cost=False)
        with anyio.move_on_after(1.0):
            await anext(pieces)
        await pieces.aclose()
    with anyio.fail_after(60):
        while clinging.pid is not None:
            await anyio.sleep(0.05)
    assert good.pid is not None
    await clinging.aclose()
    await good.aclose()


async def test_an_outage_of_the_provider_is_still_one(tmp_path: Path) -> None:
    """Negative control: what the provider did is not blamed on the process, and that is not started again."""
    failed = "give({'call': call['call'], 'failure': {'status': 503, 'text': 'busy'}})"
    process = process_of(f"give({{'ready': {{}}}})\nwhile True:\n    call = take()\n    {failed}\n", tmp_path)
    with pytest.raises(ModelUnavailable):
        await text_of(process)
    await process.aclose()
    assert starts(tmp_path) == 1


async def test_it_ends_when_it_is_idle(tmp_path: Path) -> None:
    """After so long without a call, and never during one; the next call starts a new one. Nobody is warned of it."""
    process = process_of(GOOD, tmp_path, idle_s=0.4)
    assert await text_of(process) == "fine"
    first = process.pid
    assert first is not None
    await has_ended(process)
    with capture_logs() as logs:
        assert await text_of(process) == "fine"
    assert process.pid not in (None, first)
    await process.aclose()
    assert starts(tmp_path) == 2
    assert not [each for each in logs if each["log_level"] == "warning"]


async def test_it_ends_when_it_is_idle_after_a_call_that_was_left_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets go of the call a moment later, when nobody waits for its end any more."""
    monkeypatch.setattr(child_process, "_LET_GO_LIMIT_S", 0.3)
    process = process_of(LETS_GO, tmp_path, idle_s=0.4)
    with capture_logs() as logs:
        assert await process.ask_text({}, task="chat", limit_s=0.5) is None
        assert process.pid is not None
        await has_ended(process)
    await process.aclose()
    assert [each["event"] for each in logs] == ["child_process.started", "child_process.idle"]


async def test_of_one_that_is_killed_between_calls_the_log_warns(tmp_path: Path) -> None:
    """Negative control of the one before: what ends without being asked to is told."""
    process = process_of(GOOD, tmp_path)
    assert await text_of(process) == "fine"
    assert process.pid is not None
    with capture_logs() as logs:
        os.kill(process.pid, signal.SIGKILL)
        await has_ended(process)
        assert await text_of(process) == "fine"
    await process.aclose()
    assert starts(tmp_path) == 2
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["child_process.lost"]


async def test_one_that_is_used_does_not_end(tmp_path: Path) -> None:
    """A call that takes longer than the idle time is not cut."""
    slow = "give({'ready': {}})\ncall = take()\ntime.sleep(1)\nanswer(call, 'fine')\ntake()\n"
    process = process_of(slow, tmp_path, idle_s=0.2)
    assert await text_of(process) == "fine"
    await process.aclose()
    assert starts(tmp_path) == 1


async def test_another_network_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confined process cannot read the file that takes the place of resolv.conf, so it gives way to a new one."""
    names = tmp_path / "resolv.conf"
    names.write_text("nameserver 192.0.2.1")
    monkeypatch.setattr(child_process, "_NAME_FILES", (str(names), str(tmp_path / "nowhere")))
    process = process_of(GOOD, tmp_path)
    for _ in range(2):
        assert await text_of(process) == "fine"
    assert starts(tmp_path) == 1
    (tmp_path / "new").write_text("nameserver 192.0.2.2")
    (tmp_path / "new").replace(names)
    assert await text_of(process) == "fine"
    await process.aclose()
    assert starts(tmp_path) == 2


async def test_two_calls_at_a_time_do_not_meet(tmp_path: Path) -> None:
    """Each gets its own pieces, and one that dies fails both."""
    mixed = (
        "give({'ready': {}})\na, b = take(), take()\nfor call in (a, b, a, b):\n"
        "    give({'call': call['call'], 'piece': {'text': str(call['request'])}})\n"
        "give({'call': b['call'], 'end': True})\ngive({'call': a['call'], 'end': True})\ntake()\n"
    )
    process = process_of(mixed, tmp_path)
    said: dict[str, list[str]] = {"one": [], "two": []}

    async def call(name: str) -> None:
        async for piece in process.ask({"who": name}, stream=True, cost=False):
            said[name].append(piece.text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "one")
        tasks.start_soon(call, "two")
    await process.aclose()
    assert said == {name: [str({"who": name})] * 2 for name in said}


async def test_a_request_beyond_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not sent, and the process stays."""
    monkeypatch.setattr(
        child_process, "encode_frame", lambda frame: (_ for _ in ()).throw(ValueError("a frame of 1 bytes"))
    )
    process = process_of(GOOD, tmp_path)
    await process.start()
    with pytest.raises(ValueError, match="a frame"):
        await anext(process.ask({}, stream=True, cost=False))
    assert process.pid is not None
    await process.aclose()


DAEMON = """
import anyio, sys
from agent_core.llm.litellm.litellm_client import LiteLLMProcess
async def main():
    one = LiteLLMProcess()
    one.command = [sys.executable, "-c", sys.argv[1], "/dev/null"]
    await one.start()
    print(one.pid, flush=True)
    await anyio.sleep(600)
anyio.run(main)
"""


@pytest.mark.parametrize("how", ["kernel", "socket"])
def test_it_dies_with_the_daemon(how: str) -> None:
    """
    SIGKILL of the daemon ends it: by the kernel even when it never reads again, and by the end of its
    socket.
    """
    by_kernel = (
        "from agent_core.children.service_confinement import die_with_parent; die_with_parent()\n"
        + HEAD
        + DEAF
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, by_kernel if how == "kernel" else HEAD + GOOD],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert daemon.stdout is not None
    child = next(int(line) for line in daemon.stdout if line.strip().isdigit())
    assert Path(f"/proc/{child}").exists()
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    daemon.stdout.close()
    deadline = time.monotonic() + 20
    while _lives(child):
        assert time.monotonic() < deadline, "it outlived the daemon"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class Fine(StreamingModel):
    """Another model of the pool."""

    async def answer(self, messages, tools):
        yield "fine"


async def test_the_next_model_takes_over(tmp_path: Path) -> None:
    """
    A pool with a model that needs no litellm answers while that is broken, and closing is safe at any time.
    """
    process = process_of(BROKEN, tmp_path)
    client = LiteLLMClient("anthropic/x", clock=LoopClock(), process=process)
    pool = ModelPool("main", [("m", client), ("n", Fine())], LoopClock())  # type: ignore[list-item]
    assert (await ask(pool, ASK, [], stream=True, max_chars=100)).text == "fine"
    await process.aclose()
    await process.aclose()
    with pytest.raises(CallFailed):
        await process.start()
