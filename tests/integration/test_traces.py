"""A whole turn as a collector sees it: its tree, what is in its attributes, and that no collector costs an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

from agent_core.models import ToolResult
from agent_core.provenance import untrusted_origin
from agent_core.tools.effects import Effect
from gateway.observability.trace_export import SCHEMA_URL
from gateway.observability.traces import start_traces, stop_traces
from tests.doubles.agent import StreamingModel, call
from tests.doubles.trace_collector import TraceCollector
from tests.integration.gateway_world import world

OWNER = {"owner": {"aliases": [{"channel": "matrix", "address": "@ann:hs.test"}]}}
SECRET = "hunter2-hunter2-hunter2"
WORDS = "the walrus is called Gustav"


class MailAttachmentKeeper:
    """A tool with an effect, and so with a receipt; it may fail."""

    name, description, effect = "keep", "Keeps.", Effect.PERSIST
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"what": {"type": "string"}}}

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def execute(self, what: str = "") -> ToolResult:
        self.kept.append(what)
        return ToolResult(content=f"kept {what}", is_error="fail" in what)


class Keen(StreamingModel):
    """A model that keeps what it is told, and then says so."""

    async def answer(self, messages, tools):
        last = messages[-1]
        if last.role == "tool":
            yield f"done: {last.content}"
        else:
            yield call("keep", what=last.content.rsplit("\n", 1)[-1])


@contextmanager
def traced(collector, *, contents=False):
    start_traces(
        collector.url, {"Authorization": f"Bearer {SECRET}"}, contents=contents, secret_texts={SECRET}
    )
    try:
        yield
    finally:
        stop_traces()


async def ask(tmp_path, text=WORDS, *, tool=None, person="@ann:hs.test"):
    """One answered question."""
    tool = tool or MailAttachmentKeeper()
    async with world(tmp_path, name="matrix", settings=OWNER, models={"demo": Keen()}, tools=[tool]) as one:
        said = (await one.asked(text, person=person)).text
    return said, tool


async def test_a_turn_is_a_tree_and_its_delivery_is_linked(tmp_path):
    """Turn above two model calls and a tool; receipt and origins at the tool; nobody's words anywhere."""
    with TraceCollector() as collector:
        with traced(collector):
            said, tool = await ask(tmp_path)
        assert said == f"done: kept {WORDS}"
        assert tool.kept == [WORDS]
        [turn] = collector.named("invoke_agent")
        models, [keep] = collector.named("chat"), collector.named("execute_tool")
        [sent] = collector.named("send")
        assert [each.parent for each in (*models, keep)] == [turn.id] * 3
        assert turn.parent == "" == sent.parent
        assert sent.links == (turn.id,)
        assert {each.schema for each in collector.spans} == {SCHEMA_URL}
        assert len({each.id for each in collector.spans}) == len(collector.spans) == 5
        assert turn.attributes["squidbot.outcome"] == "answered"
        assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
        assert sent.attributes["squidbot.outcome"] == "sent"
        assert sent.attributes["squidbot.inbox.id"] in turn.attributes["squidbot.inbox.ids"]
        assert all(each.attributes["gen_ai.usage.input_tokens"] > 0 for each in models)
        assert keep.name == "execute_tool keep"
        assert keep.attributes["squidbot.receipt"] is True
        assert keep.attributes["squidbot.outcome"] == "done"
        assert keep.attributes["squidbot.origins"] == []
        assert keep.attributes["squidbot.trust"] == "owner"
        for words in ("walrus", "Gustav", "@ann", "hs.test", SECRET):
            assert words.encode() not in collector.raw
        assert collector.headers[0]["authorization"] == f"Bearer {SECRET}"


async def test_contents_only_if_asked_for_and_without_secrets(tmp_path):
    """The control of the test above: with ``contents`` the words are there, and the secret still is not."""
    with TraceCollector() as collector:
        with traced(collector, contents=True):
            await ask(tmp_path, f"{WORDS} and {SECRET}")
        first, last = collector.named("chat")
        assert (
            WORDS
            in json.loads(first.attributes["gen_ai.output.messages"])[0]["parts"][0]["arguments"]["what"]
        )
        assert WORDS in collector.named("execute_tool")[0].attributes["gen_ai.tool.call.result"]
        assert WORDS in last.attributes["gen_ai.output.messages"]
        assert SECRET.encode() not in collector.raw


async def test_origins_and_results_are_told_by_their_kinds(tmp_path):
    """Another person asks, and a tool shows a page: kinds and trust are told, and never who or where."""

    class Reader(MailAttachmentKeeper):
        effect = Effect.READ

        async def execute(self, what=""):
            return ToolResult(content="a page", origins=(untrusted_origin("web", "https://walrus.example"),))

    with TraceCollector() as collector:
        with traced(collector):
            await ask(tmp_path, tool=Reader(), person="@bob:hs.test")
        [read] = collector.named("execute_tool")
        assert read.attributes["squidbot.receipt"] is False
        assert read.attributes["squidbot.origins"] == ["person"]
        assert read.attributes["squidbot.trust"] == "known"
        assert read.attributes["squidbot.result.origins"] == ["web"]
        assert b"walrus" not in collector.raw
        assert b"@bob" not in collector.raw


async def test_a_failed_tool_is_a_failed_span(tmp_path):
    with TraceCollector() as collector:
        with traced(collector):
            await ask(tmp_path, "fail please")
        [keep] = collector.named("execute_tool")
        assert keep.error
        assert keep.attributes["squidbot.outcome"] == "failed"


@pytest.mark.parametrize("mode", ["refusing", "redirecting", "huge", "silent", "away"])
async def test_no_collector_costs_an_answer(tmp_path, mode):
    """Whatever it does, the answer comes, and one line says how many spans were dropped."""
    with TraceCollector(mode) as collector, structlog.testing.capture_logs() as lines:
        if mode == "away":
            collector._server.server_close()
        with traced(collector):
            said, _ = await ask(tmp_path)
        assert said == f"done: kept {WORDS}"
        assert [line["spans"] for line in lines if line["event"] == "traces.dropped"] == [5]
        assert collector.sent_bytes < 50_000_000
