"""Questions about tool calls as they are asked, and the texts in which they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from agent_core.messages import SessionKey
from agent_core.models import ToolCall
from gateway.store.model import Question
from gateway.turns.questions import question_text

_FACTS = {"origins", "offer", "people", "again"}


def asked_about(
    call: ToolCall,
    review: str = "",
    *,
    name: str = "a3f2c9d",
    until: datetime = datetime(2026, 1, 2, tzinfo=UTC),
    also: Sequence[tuple[ToolCall, str]] = (),
    **facts: Any,
) -> Question:
    """Build a question about a call, and about those that are asked about with it."""
    calls = ((call, review), *also)
    return Question(name, SessionKey("test", "dm"), (), call.name, until, None, calls=calls, **facts)


def asking_text(
    name: str,
    call: ToolCall,
    until: datetime,
    *,
    review: str = "",
    also: Sequence[tuple[ToolCall, str]] = (),
    is_again: bool = False,
    **more: Any,
) -> str:
    """Render the question about a call; ``more`` are facts of the question, and how it is rendered."""
    facts = {key: more.pop(key) for key in _FACTS & set(more)}
    question = asked_about(call, review, name=name, until=until, also=also, again=is_again, **facts)
    return question_text.asking_text(question, **more)


def attached_text(call: ToolCall, review: str = "") -> str:
    """Render the file that goes with a question."""
    return question_text.attached_text(asked_about(call, review))
