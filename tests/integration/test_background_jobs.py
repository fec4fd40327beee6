"""Background jobs on a whole gateway: started by a turn, done beside the conversation, answered there once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from agent_core.errors import ModelRefused
from agent_core.messages import Audience, MessageContext, OrderNote, SessionKey
from agent_core.models import (
    MemoryScope,
    Message,
    ModelChunk,
    ScopeKind,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from agent_core.provenance import to_json, untrusted_origin
from agent_core.tools.effects import Effect
from gateway.errors import NotFound
from gateway.operations import background_operations
from gateway.operations.operation_context import OperationContext
from gateway.proactive.background_jobs import SessionBackgroundJobs
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.background_job_rows import job_message
from gateway.store.model import JobKind
from gateway.store.stores import Pending
from tests.clock import EPOCH, ManualClock
from tests.doubles.loopback import LoopbackServer
from tests.integration.background_world import (
    ANN,
    BOB,
    Worker,
    house,
    started_in,
    texts,
    until,
    until_idle,
)
from tests.integration.gateway_world import Scenario, world
from tests.integration.schedule_world import START, later, scheduled
from tests.proactive_world import house as proactive_house


async def test_a_job_answers_once_in_the_conversation_that_asked(tmp_path: Path) -> None:
    """While it runs the conversation goes on, and afterwards the conversation knows of it."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model) as one:
        started = (await one.asked("start count the sheep", person=ANN)).text
        await until(lambda: model.began == ["count the sheep"])
        assert (await one.asked("hello", person=ANN)).text == "heard: hello"
        model.gate.set()
        await one.server.answers(3, conversation=f"dm-{ANN}", within_s=60)
        told = texts(one)[2]
        assert told == f"Background job `{started_in(started)}` (a task) is done:\n\ndone: count the sheep"
        await one.asked("what was it?", person=ANN)
        assert "done: count the sheep" in model.prompts[-1]
        assert len([text for text in texts(one) if "done: count" in text]) == 1


async def test_a_job_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Stopped in the middle, it is taken up again, and answers once."""
    model, server = Worker(), LoopbackServer()
    model.gate = anyio.Event()
    async with house(tmp_path, model, server) as one:
        await one.asked("start count the sheep", person=ANN)
        await until(lambda: len(model.began) == 1)
    model.gate.set()
    async with house(tmp_path, model, server) as one:
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=60)
        assert (await one.inbox()).get("ready") is None
    assert [text for text in texts(one) if "done:" in text] == texts(one)[1:]
    assert len(model.began) == 2


async def test_a_job_starts_no_jobs(tmp_path: Path) -> None:
    """The tools of a job are those of its person, without those that start jobs."""
    model = Worker()
    async with house(tmp_path, model) as one:
        await one.asked("start nothing much", person=ANN)
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=60)
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
        assert "It has written nothing yet" in (await one.asked(f"job_output {job}", person=ANN)).text
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
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=60)
        own = SessionKey("matrix", f"dm-{ANN}", f"+job.{job}")
        await one.built.history.flush(own)
        tail = await one.built.memory.load_history(str(own), max_messages=10)
    assert [line.role for line in tail.messages] == ["user", "assistant"]
    assert tail.messages[0].content == "count the sheep"
    assert {line.scope for line in tail.messages} == {"owner"}


async def test_a_guests_job_is_the_guests(tmp_path: Path) -> None:
    """It has the guest's memory and tools; neither sees, reads or stops the other's jobs."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people") as one:
        await one.built.memory.save_global_memory(
            MemoryScope(ScopeKind.OWNER), "- the safe is behind the clock"
        )
        anns = started_in((await one.asked("start count the sheep", person=ANN)).text)
        bobs = started_in((await one.asked("start count the goats", person=BOB)).text)
        await until(lambda: len(model.began) == 2)
        assert any("behind the clock" in prompt and "count the sheep" in prompt for prompt in model.prompts)
        assert not any(
            "behind the clock" in prompt and "count the goats" in prompt for prompt in model.prompts
        )
        assert "There is no background job" in (await one.asked(f"stop_job {anns}", person=BOB)).text
        assert (
            f"no background job `{anns}` of yours" in (await one.asked(f"!jobs stop {anns}", person=BOB)).text
        )
        assert anns not in (await one.asked("!jobs", person=BOB)).text
        assert bobs not in (await one.asked("!jobs", person=ANN)).text
        assert f"`{bobs}` is stopped" in (await one.asked(f"!jobs stop {bobs}", person=BOB)).text
        model.gate.set()
        await until(lambda: any("done: count the sheep" in text for text in texts(one)))
    assert not any("done:" in text for text in texts(one, BOB))


async def test_somebody_who_may_not_speak_any_more_gets_nothing(tmp_path: Path) -> None:
    """The rights are those of the moment when the job is done, not of that when it was asked for."""
    model, server = Worker(), LoopbackServer()
    model.gate = anyio.Event()
    async with house(tmp_path, model, server, allow="people") as one:
        await one.asked("start count the goats", person=BOB)
        await until(lambda: len(model.began) == 1)
    model.gate.set()
    async with house(tmp_path, model, server, allow="owner") as one:
        await until_idle(one)
        (job,) = await one.built.proactive.background_jobs.all()
        assert "skipped" in await one.built.proactive.background_jobs.state_text(job)
    assert model.began == ["count the goats"]
    assert len(texts(one, BOB)) == 1


async def test_a_tainted_turn_starts_a_tainted_job(tmp_path: Path) -> None:
    """What a guest has said is in the job, and in the line that the conversation keeps of its answer."""
    model = Worker()
    async with house(tmp_path, model, allow="people") as one:
        job = started_in((await one.asked("start count the goats", person=BOB)).text)
        await until(lambda: len(texts(one, BOB)) == 2)
        place = SessionKey("matrix", f"dm-{BOB}")
        await one.built.history.flush(place)
        own = SessionKey("matrix", f"dm-{BOB}", f"+job.{job}")
        await one.built.history.flush(own)
        kept = (await one.built.memory.load_history(str(place), max_messages=10)).messages
        lines = (await one.built.memory.load_history(str(own), max_messages=10)).messages
    told = next(line for line in kept if "is done:" in line.content)
    for line in (told, *lines):
        assert [(origin.kind, origin.where) for origin in line.sources] == [("person", BOB)]


async def test_the_list_of_jobs_has_the_origins_of_the_jobs(tmp_path: Path) -> None:
    """What a job was made of is read again with its name."""
    model = Worker()
    async with house(tmp_path, model) as one:
        jobs = one.built.proactive.background_jobs
        place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), "bot", ANN)
        page = untrusted_origin("web", "https://evil.example/", EPOCH)
        job = await jobs.start(place, "read it", key="t", note=OrderNote(origins=to_json([page])))
        mine = SessionBackgroundJobs(jobs, place, turn="t")
        assert (await mine.list_text())[1] == (page,)
        await until_idle(one)
        assert [origin.kind for origin in (await mine.output(job.id))[1]] == ["web"]


async def test_a_job_reads_what_is_not_to_be_trusted_and_so_does_its_answer(tmp_path: Path) -> None:
    """What the job itself has read is in the answer's line too; without the job's own origins it would be lost."""
    model = Worker()
    page = Page()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    async with world(
        tmp_path,
        name="matrix",
        settings={"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}},
        models={"demo": model},
        tools=[page],
    ) as one:
        await one.asked("start read it", person=ANN)
        await until(lambda: len(texts(one)) == 2)
        place = SessionKey("matrix", f"dm-{ANN}")
        await one.built.history.flush(place)
        kept = (await one.built.memory.load_history(str(place), max_messages=10)).messages
    told = next(line for line in kept if "is done:" in line.content)
    assert "nice weather" in told.content
    assert [(origin.kind, origin.where) for origin in told.sources] == [("web", "https://evil.example/")]


class Page:
    """A tool that gives a page somebody else has written."""

    name, description = "read_page", "Reads a page."
    effect = Effect.PRIVATE_READ
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}

    async def execute(self, **_: Any) -> ToolResult:
        return ToolResult(
            content="nice weather", origins=(untrusted_origin("web", "https://evil.example/", EPOCH),)
        )


async def test_three_of_one_conversation_run_at_once_and_ten_wait(tmp_path: Path) -> None:
    """What is too much is refused, people are answered meanwhile, and all that were taken are done."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model) as one:
        for number in range(10):
            started_in((await one.asked(f"start task {number}", person=ANN)).text)
        assert "Too many background jobs" in (await one.asked("start one more", person=ANN)).text
        await until(lambda: len(model.began) == 3)
        report = await one.built.status.read()
        assert report["work"]["background_jobs"] == 10
        assert report["work"]["turns_running"] == 3
        assert report["work"]["oldest_unanswered_s"] is None
        model.gate.set()
        await until(lambda: sum("is done:" in text for text in texts(one)) == 10)


async def test_people_go_before_jobs(tmp_path: Path) -> None:
    """Of two places jobs get one at the most, so a guest is answered at once; without that they would wait."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people", gateway={"max_concurrent_turns": 2}) as one:
        await one.asked("start task one", person=ANN)
        await one.asked("start task two", person=BOB)
        await until(lambda: len(model.began) == 1)
        assert (await one.asked("hello", person=BOB)).text == "heard: hello"
        assert len(model.began) == 1
        model.gate.set()
        await until(lambda: len(model.began) == 2)


async def test_what_a_job_costs_is_counted_by_itself(tmp_path: Path) -> None:
    """Under its own purpose."""
    model = Worker()
    async with house(tmp_path, model) as one:
        await one.asked("start count the sheep", person=ANN)
        await until(lambda: len(texts(one)) == 2)
        rows = await one.built.store.usage.rows(days=2)
    assert {row.purpose for row in rows} == {"chat", "background"}


async def test_a_job_asks_its_person_in_their_conversation(tmp_path: Path) -> None:
    """With its name; what else is written there neither answers nor withdraws it; a yes is given in a word."""
    model, page = Worker(), Page()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    async with asking_house(tmp_path, model, page) as one:
        job = started_in((await one.asked("start read it", person=ANN)).text)
        await one.server.answers(2, conversation=f"dm-{ANN}", within_s=60)
        question = texts(one)[1]
        assert f"In the background job `{job}` (a task):" in question
        assert "`read_page`" in question
        assert (await one.asked("what a day", person=ANN)).text == "heard: what a day"
        name = re.findall(r"\*\*(a[0-9a-f]{6})\*\*", question)[0]
        listed = await one.asked("!jobs", person=ANN)
        assert f"{job}: waiting for an answer to `{name}`, which is about `read_page`, started" in listed.text
        one.server.say(ANN, f"!approve {name}")
        await until(lambda: any("nice weather" in text for text in texts(one)))


@pytest.mark.parametrize("allowed", [BOB, "@somebody:hs.test"])
async def test_a_yes_to_the_job_of_somebody_who_was_removed_runs_nothing(
    tmp_path: Path, allowed: str
) -> None:
    """Not by the owner either; the control is the same yes for somebody who may still talk to it."""
    model, page, server = Worker(), Page(), LoopbackServer()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    async with asking_house(tmp_path, model, page, server) as one:
        await one.asked("start read it", person=BOB)
        await one.server.answers(2, conversation=f"dm-{BOB}", within_s=60)
        name = re.findall(r"\*\*(a[0-9a-f]{6})\*\*", texts(one, BOB)[1])[0]
    async with asking_house(tmp_path, model, page, server, allow_from={"matrix": [allowed]}) as two:
        two.server.say(ANN, f"!approve {name}")
        await until(lambda: any(f"`{name}`" in text for text in texts(two)))
        await until_idle(two)
    assert any("nice weather" in text for text in texts(two, BOB)) is (allowed == BOB)
    assert len(texts(two, BOB)) == (3 if allowed == BOB else 2)


@pytest.mark.parametrize("answer", ["yes", "!reject", "a guest's yes", "nothing"])
async def test_a_job_of_the_owner_in_a_crowd_asks_the_owner_in_private(tmp_path: Path, answer: str) -> None:
    """Over a restart; the crowd hears the result alone, and nobody there can answer."""
    model, page, server = Worker(), Page(), LoopbackServer()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    server.groups = {"room"}
    short = {"approval_timeout_minutes": 0.1} if answer == "nothing" else {}
    async with asking_house(tmp_path, model, page, server, tools=short) as one:
        await one.asked("hello", person=ANN)
        await one.asked("hello", person=BOB)
        server.say(ANN, "start read it", conversation="room")
        await until(lambda: len(texts(one)) == 2)
        question = texts(one)[1]
        assert "(a task), which you have started in `matrix/room`" in question
        name = re.findall(r"\*\*(a[0-9a-f]{6})\*\*", question)[0]
        assert not any(name in said.text for said in server.seen("room"))
    async with asking_house(tmp_path, model, page, server, tools=short) as two:
        if answer == "a guest's yes":
            for place in ("room", f"dm-{BOB}"):
                server.say(BOB, f"!approve {name}", conversation=place)
            server.say(BOB, "yes", conversation="room")
            await server.answers(3, conversation="room", within_s=60)
            await server.answers(2, conversation=f"dm-{BOB}", within_s=60)
            assert len(await two.built.store.approvals.questions()) == 1
        if answer != "nothing":
            server.say(ANN, f"!reject {name}" if answer == "!reject" else "yes")
        await until(lambda: any("Background job" in said.text for said in server.seen("room")))
    (told,) = [said.text for said in server.seen("room") if "Background job" in said.text]
    assert ("nice weather" in told) is (answer in ("yes", "a guest's yes"))
    assert ("said no" in told) is (answer == "!reject")
    assert ("did not answer in time" in told) is (answer == "nothing")
    assert any("Nobody answered `" in said for said in texts(two)) is (answer == "nothing")


@pytest.mark.parametrize("person", [ANN, BOB])
async def test_a_job_whose_room_is_not_for_two_any_more_asks_the_owner_or_nobody(
    tmp_path: Path, person: str
) -> None:
    """It was left, forgotten, or others have come in: the owner is asked elsewhere, a guest's call is not made."""
    model, page, server = Worker(), Page(), LoopbackServer()
    model.gate = anyio.Event()

    def in_job(said: str, messages: Sequence[Message]) -> ToolCall:
        server.groups = {f"dm-{person}"}
        return ToolCall(id="1", name="read_page", arguments={})

    model.in_job = in_job
    async with asking_house(tmp_path, model, page, server) as one:
        model.gate.set()
        await one.asked("start read it", person=person)
        place = f"dm-{person}-anew"
        await until(lambda: bool(server.seen(place)))
        said = server.seen(place)[0].text
        if person == ANN:
            name = re.findall(r"\*\*(a[0-9a-f]{6})\*\*", said)[0]
            server.say(ANN, f"!approve {name}", conversation=place)
            await until(lambda: any("nice weather" in each.text for each in server.seen(place)))
        else:
            assert "nobody can be asked here; it was not run" in said
        await until_idle(one)
    assert not any("read_page" in each.text for each in server.seen(f"dm-{person}"))


async def test_a_job_of_a_guest_does_not_ask_in_a_crowd(tmp_path: Path) -> None:
    """In a room nobody is asked, and the call is not made; in the conversation above it is asked about."""
    model, page = Worker(), Page()
    model.in_job = lambda said, messages: ToolCall(id="1", name="read_page", arguments={})
    server = LoopbackServer()
    server.groups = {"room"}
    async with asking_house(tmp_path, model, page, server):
        server.say(BOB, "start read it", conversation="room")
        await server.answers(2, conversation="room", within_s=60)
        told = server.seen("room")[1].text
    assert told.startswith(f"For {BOB}: Background job")
    assert "nobody can be asked here; it was not run" in told
    assert "nice weather" not in told


@asynccontextmanager
async def asking_house(
    root: Path,
    model: Worker,
    page: Page,
    server: LoopbackServer | None = None,
    tools: Mapping[str, Any] = MappingProxyType({}),
    **overrides: Any,
) -> AsyncIterator[Scenario]:
    async with world(
        root,
        server=server,
        **overrides,
        name="matrix",
        settings={
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "tools": {"jobs": {"allow": "people"}, "require_approval": ["read_page"], **tools},
        },
        models={"demo": model},
        tools=[page],
    ) as one:
        yield one


async def test_the_answer_is_not_said_where_somebody_else_has_come_in(tmp_path: Path) -> None:
    """What was asked for in private reaches the person's direct conversation, once."""
    model = Worker()
    async with house(tmp_path, model) as one:
        # For this server only dm-… is a conversation of two.
        one.server.say(ANN, "start count the sheep", conversation="upgraded")
        await until(lambda: bool(texts(one)))
        assert "done: count the sheep" in texts(one)[0]
        await until_idle(one)
    assert ["done:" in message.text for message in one.server.seen("upgraded")] == [False]
    assert len(texts(one)) == 1


@pytest.mark.parametrize("removed", [True, False])
async def test_the_answer_does_not_go_to_a_room_that_the_bot_has_left(tmp_path: Path, removed: bool) -> None:
    """Nobody would get it there: its person gets it in their direct conversation. The control has stayed."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people") as one:
        one.server.groups = {"room"}
        one.server.say(ANN, "start count the sheep", conversation="room")
        await until(lambda: bool(model.began))
        one.server.left = {"room"} if removed else set()
        model.gate.set()
        where = f"dm-{ANN}" if removed else "room"
        await until(lambda: any("done: count" in message.text for message in one.server.seen(where)))
        await until_idle(one)
    told = ["done: count the sheep" in message.text for message in one.server.seen("room")]
    assert told == ([False] if removed else [False, True])
    assert ["done: count the sheep" in text for text in texts(one)] == [True] * removed


async def test_what_came_back_with_a_backup_waits_for_a_person(tmp_path: Path) -> None:
    """It may be done already: it is listed as held, and does nothing; a person can end it."""
    model = Worker()
    async with house(tmp_path, model) as one:
        place = SessionKey("matrix", f"dm-{ANN}")
        job = job_message(
            "a turn", text="count the sheep", place=place, account="bot", person=ANN,
            audience=Audience.DIRECT, at=EPOCH, context=MessageContext(),
        )  # fmt: skip
        await one.built.store.inbox.accept("matrix", "bot", [Pending(job, quarantine="restored")], {})
        call = OperationContext(
            one.built.store, one.built.memory, background=one.built.proactive.background_jobs
        ).call
        (row,) = (await call("jobs_list", {"open_only": True}))["jobs"]
        assert row["state_text"] == "held since a backup was restored"
        assert "held since" in background_operations.render_jobs({"jobs": [row]})
        assert model.began == []
        assert (await call("jobs_stop", {"id": row["id"]}))["changed"]
        assert (await call("jobs_list", {"open_only": True}))["jobs"] == []


async def test_the_operator_sees_and_ends_everybodys(tmp_path: Path) -> None:
    """List, show, stop; a job that is not there is not found."""
    model = Worker()
    model.gate = anyio.Event()
    async with house(tmp_path, model, allow="people") as one:
        job = started_in((await one.asked("start count the goats", person=BOB)).text)
        await until(lambda: len(model.began) == 1)
        call = OperationContext(
            one.built.store, one.built.memory, background=one.built.proactive.background_jobs
        ).call
        shown = background_operations.render_job(await call("jobs_show", {"id": job}))
        assert shown.startswith(f"{job}  task     running; started ")
        assert f"{BOB} in matrix/dm-@bob%3ahs.test: a task" in shown
        assert "count the goats" in shown
        assert (await call("jobs_stop", {"id": job}))["changed"]
        assert not (await call("jobs_stop", {"id": job}))["changed"]
        with pytest.raises(NotFound):
            await call("jobs_show", {"id": "nobody"})
        model.gate.set()
        await until_idle(one)
    assert len(texts(one, BOB)) == 1


class Checker(Worker):
    """Starts one job at its first check-in and has nothing to say there; in a scheduled question, too."""

    def __init__(self) -> None:
        super().__init__()
        self.started = 0

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        wish = next(message.content for message in reversed(messages) if message.role == "user")
        if "This is the regular check-in" not in wish and "[This is the scheduled job" not in wish:
            return await super().chat(messages, tools, stream=stream)
        last = messages[-1]

        async def answer() -> AsyncIterator[ModelChunk]:
            if (last.role == "user" and self.started) or (
                last.role == "tool" and "not loaded" not in last.content
            ):
                yield "HEARTBEAT_OK" if "check-in" in wish else "I have begun."
            else:
                self.started += last.role == "tool"
                yield ToolCall(id="1", name="start_job", arguments={"goal": "count the geese"})

        return answer()


async def test_what_a_check_in_starts_is_told_to_the_owner(tmp_path: Path) -> None:
    """Once, in the conversation that reaches them, which knows of it; the check-in itself said nothing."""
    model = Checker()
    model.gate = anyio.Event()
    async with proactive_house(tmp_path, model=model) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: model.began == ["count the geese"])
        model.gate.set()
        await home.until(lambda: len(home.chat.seen(f"dm-{ANN}")) == 2)
        assert "done: count the geese" in home.chat.seen(f"dm-{ANN}")[1].text
        await home.asked(ANN, "what was it?")
        assert "done: count the geese" in model.prompts[-1]
        told = [one for one in home.chat.delivered if "done: count the geese" in one.text]
    assert len(told) == 1


async def test_what_a_scheduled_question_starts_is_answered_in_its_conversation(tmp_path: Path) -> None:
    """The run says that it has begun, and later what came of it."""
    model, clock = Checker(), ManualClock(START)
    async with scheduled(tmp_path, clock, model=model) as home:
        place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), "bot", ANN)
        wish = TriggerRequest(cron="0 * * * *")
        await home.built.proactive.jobs.add(place, wish, text="the geese", kind=JobKind.ASK)
        await later(home, clock, hours=1)
        await home.until(lambda: len(home.chat.seen(f"dm-{ANN}")) == 2)
        said = [one.text for one in home.chat.seen(f"dm-{ANN}")]
        assert said[0] == "I have begun."
        assert "done: count the geese" in said[1]


async def test_a_job_that_fails_is_told_once_and_known(tmp_path: Path) -> None:
    """A model that cannot do it is no silence: its person is told, and the list says so."""
    model = Worker()

    def fails(said: str, messages: Sequence[Message]) -> Any:
        raise ModelRefused("no such model")

    model.in_job = fails
    async with house(tmp_path, model) as one:
        job = started_in((await one.asked("start count the sheep", person=ANN)).text)
        await until(lambda: len(texts(one)) == 2)
        assert texts(one)[1].startswith(f"Sorry, the background job `{job}` (a task) could not be done.")
        assert f"{job}: failed" in (await one.asked("!jobs", person=ANN)).text
        await one.asked("what happened?", person=ANN)
        assert "could not be done" in model.prompts[-1]


async def test_jobs_stop_before_people_when_the_budget_is_nearly_spent(tmp_path: Path) -> None:
    """Their share is used up: the job waits, its person is told so once, and is answered all the same."""
    model = Worker()
    budget = {"tokens_per_day": 1_000_000, "shares": {"jobs": 0.0}}
    async with house(tmp_path, model, llm={"budget": budget}) as one:
        job = started_in((await one.asked("start count the sheep", person=ANN)).text)
        await until(lambda: len(texts(one)) == 2)
        assert texts(one)[1].startswith(
            f"The background job `{job}` (a task) waits: the share of today's budget for jobs"
        )
        assert (await one.asked("hello", person=ANN)).text == "heard: hello"
        assert model.began == []
        assert f"{job}: waiting" in (await one.asked("!jobs", person=ANN)).text
