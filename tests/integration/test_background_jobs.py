"""Background jobs on a whole gateway: started by a turn, done beside the conversation, answered there once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agent_core.messages import SessionKey
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import World, world

ANN, BOB = "@ann:hs.test", "@bob:hs.test"
IS_JOB = "[This is the background job"


class Worker:
    """
    Starts a job for ``start TEXT``; what a job is told to do it does by waiting for ``gate`` and saying so.

    ``seen`` are the names of the tools of each request, of conversations and of jobs.
    """

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.gate.set()
        self.began: list[str] = []
        self.tools: dict[str, set[str]] = {"job": set(), "conversation": set()}
        self.prompts: list[str] = []
        self.in_job: Callable[[str, Sequence[Message]], Any] | None = None

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        last = messages[-1]
        wish = next(message.content for message in reversed(messages) if message.role == "user")
        self.prompts.append("\n".join(message.content for message in messages))
        is_job = IS_JOB in wish
        names = self.tools["job" if is_job else "conversation"]
        names |= {tool.name for tool in tools}
        for tool in tools:  # those that could be found are there, too
            if tool.name == "find_tools":
                names |= set(tool.description.rpartition("There are: ")[2].rstrip(".").split(", "))
        fresh = last.role != "tool" or "was not loaded" in last.content

        async def answer() -> AsyncIterator[ModelChunk]:
            said = wish.splitlines()[-1]
            if is_job:
                if self.in_job is not None and fresh and (step := self.in_job(said, messages)):
                    yield step
                    return
                self.began.append(said)
                await self.gate.wait()
                yield f"done: {said}" if last.role != "tool" else f"done: {said} ({last.content})"
            elif not fresh:
                yield f"so: {last.content}"
            elif found := re.search(r"start (.*)", said):
                yield ToolCall(id="1", name="start_job", arguments={"goal": found[1], "name": "a task"})
            elif found := re.search(r"(jobs|job_output|stop_job) ?(\w*)$", said):
                arguments = {"id": found[2]} if found[2] else {}
                yield ToolCall(id="1", name=found[1], arguments=arguments)
            else:
                yield f"heard: {said}"

        return answer()


@asynccontextmanager
async def house(
    root: Path, model: Worker, server: LoopbackServer | None = None, allow: str = "owner", **settings: Any
) -> AsyncIterator[World]:
    async with world(
        root,
        server=server,
        name="matrix",
        settings={
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "tools": {"jobs": {"allow": allow}},
            **settings,
        },
        models={"demo": model},
    ) as one:
        yield one


def texts(one: World, person: str = ANN) -> list[str]:
    return [message.text for message in one.server.seen(f"dm-{person}")]


async def until(what: Callable[[], bool], within_s: float = 20.0) -> None:
    with anyio.fail_after(within_s):
        while not what():
            await anyio.sleep(0.02)


def started_in(text: str) -> str:
    found = re.search(r"Started as (\w{6})", text)
    assert found, text
    return found[1]


async def test_a_job_answers_once_in_the_conversation_that_asked(tmp_path: Path) -> None:
    """While it runs the conversation goes on, and afterwards the conversation knows of it."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model) as one:
        started = (await one.asked("start count the sheep", person=ANN)).text
        await until(lambda: model.began == ["count the sheep"])
        assert (await one.asked("hello", person=ANN)).text == "heard: hello"
        model.gate.set()
        await one.server.answers(3, conversation=f"dm-{ANN}", within_s=20)
        told = texts(one)[2]
        assert told == f"Background job `{started_in(started)}` (a task) is done:\n\ndone: count the sheep"
        await one.asked("what was it?", person=ANN)
        assert "done: count the sheep" in model.prompts[-1]
        assert len([text for text in texts(one) if "done: count" in text]) == 1


async def test_a_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Stopped in the middle, it is taken up again, and answers once."""
    model, server = Worker(), LoopbackServer()
    model.gate = anyio.Event()
    async with house(tmp_path, model, server, gateway={"drain_seconds": 0.1}) as one:
        await one.asked("start count the sheep", person=ANN)
        await until(lambda: len(model.began) == 1)
    model.gate.set()
    async with house(tmp_path, model, server) as one:
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=20)
        assert (await one.inbox()).get("ready") is None
    assert [text for text in texts(one) if "done:" in text] == texts(one)[1:]
    assert len(model.began) == 2


async def test_a_job_starts_no_jobs(tmp_path: Path) -> None:
    """The tools of a job are those of its person, without those that start jobs."""
    model = Worker()
    async with house(tmp_path, model) as one:
        await one.asked("start nothing much", person=ANN)
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=20)
    assert {"start_job", "stop_job", "jobs", "job_output"} <= model.tools["conversation"]
    assert not {"start_job", "stop_job", "jobs", "schedule"} & model.tools["job"]
    assert model.tools["job"] < model.tools["conversation"]
    assert "memory_write" in model.tools["job"]


async def test_a_guest_has_no_jobs_unless_they_may(tmp_path: Path) -> None:
    """By default the tools are the owner's."""
    model = Worker()
    async with house(tmp_path, model) as one:
        await one.asked("hello", person=BOB)
    assert "start_job" not in model.tools["conversation"]


async def test_a_job_is_listed_read_and_stopped(tmp_path: Path) -> None:
    """A stopped job says nothing any more; what one has said can be read again."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model) as one:
        job = started_in((await one.asked("start count the sheep", person=ANN)).text)
        await until(lambda: len(model.began) == 1)
        assert f"{job}: running" in (await one.asked("jobs", person=ANN)).text
        assert "It has said nothing yet" in (await one.asked(f"job_output {job}", person=ANN)).text
        assert f"{job} is stopped" in (await one.asked(f"stop_job {job}", person=ANN)).text
        assert f"{job}: stopped" in (await one.asked("jobs", person=ANN)).text
        other = started_in((await one.asked("start count the goats", person=ANN)).text)
        model.gate.set()
        await until(lambda: any("done: count the goats" in text for text in texts(one)))
        told = (await one.asked(f"job_output {other}", person=ANN)).text
        assert f"{other}: done" in told
        assert "done: count the goats" in told
        assert not any("sheep" in text and "done:" in text for text in texts(one))


async def test_the_history_of_a_job_is_its_own(tmp_path: Path) -> None:
    """What it is asked and answers is kept beside the conversation, with the scope of its person."""
    model = Worker()
    async with house(tmp_path, model) as one:
        job = started_in((await one.asked("start count the sheep", person=ANN)).text)
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=20)
        own = SessionKey("matrix", f"dm-{ANN}", f"+job.{job}")
        await one.built.history.flush(own)
        tail = await one.built.memory.load_history(str(own), max_messages=10)
    assert [line.role for line in tail.messages] == ["user", "assistant"]
    assert tail.messages[0].content == "count the sheep"
    assert {line.scope for line in tail.messages} == {"owner"}
