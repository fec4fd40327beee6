"""Nothing that people say, and no secret, stands in a log line at INFO or above, whatever goes wrong."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
import structlog

from agent_core.errors import ModelRefused, StreamBroken
from agent_core.llm.demo.demo_model import EchoModel
from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from agent_core.models import Message, ModelChunk, ToolDefinition
from channels.base import ChannelUnavailable, DeliveryFailed
from gateway.observability.logs import configure_logs
from gateway.observability.logs.log_lines import LineFilter, parse_line
from gateway.observability.redaction import outgoing_texts, quiet, redact_quotes
from tests.integration.gateway_world import world

BODY = "c4nary-of-a-body"
SECRET = "c4nary-of-a-secret"


@pytest.fixture
def logged():
    """All lines at INFO and above, as they would be written."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs("info", format="json", stream=stream, secrets=[SECRET])
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    from loguru import logger

    logger.remove()


class Telling:
    """A model that fails as real ones do: with an error that repeats the question."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self._answer()

    async def _answer(self) -> Any:
        yield f"an answer with {BODY} and {SECRET}"
        yield ModelChunk(done=True) if "done" in ModelChunk.model_fields else ModelChunk()


async def test_bodies_stay_out_of_the_log_when_all_goes_well(tmp_path, logged):
    """A question, an answer, a memory, a command and a stranger: their texts are in no line; the turn's line is."""
    async with world(tmp_path) as there:
        await there.asked(f"hello {BODY}")
        await there.asked(f"remember that {BODY} is mine")
        await there.asked(f"!help {BODY}")
        there.server.say("eve", f"{BODY} for the group", conversation="group", addressed=False)
        await anyio.sleep(0.2)
    text = logged.getvalue()
    assert BODY not in text
    assert '"turn.answered"' in text
    answered = [line for line in text.splitlines() if '"turn.answered"' in line]
    assert all('"session"' in line and '"turn"' in line and '"took_s"' in line for line in answered)


async def test_a_conversation_can_be_followed_by_its_name(tmp_path, logged):
    """From the message that was accepted, over its turn, to the answer that was sent: what `logs --session` shows."""
    async with world(tmp_path) as there:
        await there.asked("hello")
        with anyio.fail_after(60):
            while '"message.sent"' not in logged.getvalue():
                await anyio.sleep(0.02)
    lines = [parse_line(raw) for raw in logged.getvalue().splitlines()]
    [turn] = [line for line in lines if line.fields.get("event") == "turn.answered"]
    wanted = LineFilter(session=turn.fields["session"])
    told = [line.fields["event"] for line in lines if wanted.matches(line)]
    assert [event for event in told if event.startswith(("message", "turn"))] == [
        "message.accepted", "turn.answered", "message.sent",
    ]  # fmt: skip
    assert not any(LineFilter(session="no-such/one").matches(line) for line in lines)


@pytest.mark.parametrize(
    "word", ["!crash", "!auth", "!empty", "!garbage", "!toolfail", "!endless", "!toolong always"]
)
async def test_bodies_stay_out_of_the_log_when_a_model_fails(tmp_path, logged, word):
    """Every way in which the demo model fails, with a text beside the word."""
    async with world(tmp_path, settings={"llm": {"limits": {"seconds": 1.5}}}) as there:
        await there.asked(f"{word} {BODY}")
    text = logged.getvalue()
    assert "turn." in text
    assert BODY not in text


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"cannot work on {BODY!r} with {SECRET}"),
        ModelRefused(f"the prompt {BODY!r} is against the rules", model="m"),
        StreamBroken("cut", partial=f"so far {BODY}", model="m"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_bodies_stay_out_of_the_log_when_errors_repeat_them(tmp_path, logged, error):
    """A library's error that quotes the question, a provider's that quotes the prompt, a half answer."""
    async with world(tmp_path, models={"demo": Telling(error, error, error, error)}) as there:
        await there.asked(f"hello {BODY}")
    text = logged.getvalue()
    assert "turn." in text
    assert SECRET not in text
    assert BODY not in text


async def test_bodies_stay_out_of_the_log_when_sending_fails(tmp_path, logged):
    """A server that is away and one that refuses, both quoting what was to be sent: it is in no line."""
    async with world(tmp_path, models={"demo": EchoModel()}) as there:
        there.server.fail_deliveries(
            ChannelUnavailable(f"not now, said {BODY}", retry_after_s=0.1),
            DeliveryFailed(f"never this: 'echo: {BODY}'"),
        )
        assert (await there.asked(f"hello {BODY}")).kind is OutboundKind.APOLOGY
    text = logged.getvalue()
    assert "message.retried" in text
    assert "message.dead_lettered" in text
    assert BODY not in text


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("my pin is 4711 and more", "bad: 'my pin is 4711 and more'", "bad: '[…]'"),
        ("my pin is 4711 and more", "is 4711 and … my pin is 4711", "[…]… […]"),
        ("my pin is 4711", "connection refused", "connection refused"),
        ("hi", "hi is too short to tell from a coincidence", "hi is too short to tell from a coincidence"),
        ("my pin is 4711", "", ""),
    ],
)
def test_pieces_of_texts_in_hand_are_masked(text, error, told):
    """Whole or cut, once or several times; other words stay; outside nothing is masked."""
    with quiet([text]):
        assert redact_quotes({"error": error, "session": text}) == {"error": told, "session": text}
    assert redact_quotes({"error": error}) == {"error": error}


def test_the_look_finds_what_is_logged(logged):
    """The control: a body that somebody logs at INFO is found; a secret is masked even then; DEBUG is not written."""
    structlog.get_logger().info("message.accepted", text=BODY, why=f"with {SECRET}")
    structlog.get_logger().debug("message.text", text=f"{BODY}-debug")
    assert BODY in logged.getvalue()
    assert SECRET not in logged.getvalue()
    assert f"{BODY}-debug" not in logged.getvalue()


def test_subject_and_quotation_of_a_mail_are_texts_too():
    """A mail server may quote any line of what it refuses, not only of the answer; who refused stays readable."""
    message = OutboundMessage(
        id="o1",
        channel="email",
        account="a",
        session=SessionKey("email", "dm-ann@example.org"),
        text="Of course, gladly.",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        context={"subject": "the surprise party", "quoted": {"text": "is the cake ordered", "date": "today"}},
    )
    refusal = "554 spam from bot@example.org: Re: the surprise party / > is the cake ordered"
    with quiet(outgoing_texts(message)):
        assert redact_quotes({"error": refusal})["error"] == "554 spam from bot@example.org: Re: […] / > […]"
    with quiet([message.text]):
        assert redact_quotes({"error": refusal})["error"] == refusal
