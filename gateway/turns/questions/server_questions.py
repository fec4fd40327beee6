"""
Questions of MCP servers to the person of a turn, while a call is carried out. The question is a step of the
turn and its notice is in the outbox, by one transaction, like the question before a call
(``tool_questions.py``); it is decided by the same answers. The difference: the server's call is open, so the
turn goes on and waits here. A call does not outlive the process. What was asked by one that is gone is closed
when its turn is taken up again, and the person is told so.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import anyio
import structlog

from agent_core.tools.forms import Form
from agent_core.tools.person_port import FormReply, PersonPort
from gateway.proactive.jobs.job_permissions import PlaceUnknown
from gateway.store.model import APPROVAL, EXPIRED, WITHDRAWN
from gateway.store.stores import LostTurn, NewOutbound, Step, StoreUnavailable, Turn
from gateway.store.wakeups import Wakeups
from gateway.turns.questions.decisions import (
    ANSWERED,
    DECLINED,
    ENDED,
    name_of,
    outcome,
)
from gateway.turns.questions.question_text import form_text
from gateway.turns.questions.tool_questions import ToolQuestions

_FIRST = 1_000_000
"""The steps of a turn that are such questions have numbers from here on: they are beside its chain."""
_CHECK_EVERY_S = 30.0
_AGAIN_S = 1.0
_REPLIES: Mapping[str, tuple[Literal["decline", "cancel"], str]] = {
    DECLINED: ("decline", "the person said no"),
    WITHDRAWN: ("cancel", "the person wrote something else instead"),
    EXPIRED: ("cancel", "the person did not answer in time"),
}
_log = structlog.get_logger(__name__)


class OpenQuestions:
    """
    The questions whose calls wait; ``name in`` it says whether one does. A call ends with the process. The
    store keeps its question until the turn is taken up again; what is said to it meanwhile reaches nobody.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self._decided: dict[str, anyio.Event] = {}
        wakeups.decided.connect(self._wake)

    def __contains__(self, name: object) -> bool:
        return name in self._decided

    @contextmanager
    def waiting(self, name: str) -> Iterator[anyio.Event]:
        """While inside, the call waits; the event is set when somebody has decided."""
        self._decided[name] = decided = anyio.Event()
        try:
            yield decided
        finally:
            del self._decided[name]

    def _wake(self, name: str) -> None:
        if name in self._decided:
            self._decided[name].set()


@dataclass(eq=False, kw_only=True)
class ServerQuestions:
    """
    Asks a person for a server, in all sessions.

    ``questions`` finds the place; nobody is asked in a turn under review; ``waiting`` tracks open questions.
    """

    questions: ToolQuestions
    waiting: OpenQuestions

    def __post_init__(self) -> None:
        self._commit = self.questions.commit
        self._store = self._commit.store.approvals

    def person(self, turn: Turn, steps: Sequence[Step]) -> PersonPort:
        """The person who waits for the answer of a turn; ``steps`` is what its earlier starts have done."""
        return _Person(self, turn, max([_FIRST, *(step.number for step in steps)]))

    async def close(self, turn: Turn, steps: Sequence[Step]) -> None:
        """Close the questions of an earlier start of the turn: their calls are gone. Raises `LostTurn`."""
        for step in steps:
            if step.number > _FIRST and step.kind == APPROVAL and step.result is None:
                await self._end(turn, step, ENDED)

    async def ask(self, turn: Turn, number: int, form: Form, seconds: float) -> FormReply:
        """Ask, and wait for the answer."""
        if self.questions.reviews.needs_review(turn):
            return FormReply("decline", why="my owner reviews all answers here before they are sent")
        place = await self.questions.question_place(turn)
        if place is None:
            return FormReply("decline", why="nobody can be asked here")
        digest = secrets.token_hex(16)
        name = name_of(digest)
        facts = self.questions.facts(turn, name, seconds)
        text = form_text(
            name,
            form,
            datetime.fromisoformat(facts["until"]),
            zone=self.questions.zone,
            email_style=self._commit.channels[place.channel].capabilities.email_style,
        )
        notice = await self.questions.notice(turn, name, text, rings_for=facts["people"])
        places = list(dict.fromkeys(str(new.session) for new in notice))
        asking = {"call": {"name": form.asker}, "asked": facts["people"], "form": form.as_json()}
        request = {**facts, **asking, "places": places}
        step = Step(number, APPROVAL, digest, request, None)
        decided: Mapping[str, Any] | None = None
        with self.waiting.waiting(name) as news:
            await self._commit.retry_until_stored(
                lambda: self._store.ask(turn, step, notice, why="", delay_s=None)
            )
            _log.info("mcp.question_asked", channel=turn.channel, server=form.asker, item=name)
            try:
                with anyio.move_on_after(seconds):
                    decided = await self._decided(name, news)
                if decided is None:
                    decided = await self._end(turn, step, EXPIRED)
            finally:
                if decided is None:  # the call, or the turn, has ended meanwhile
                    with anyio.CancelScope(shield=True), anyio.move_on_after(5.0):
                        await self._end_quietly(turn, step)
        return _reply(decided)

    async def _decided(self, name: str, news: anyio.Event) -> Mapping[str, Any]:
        """Wait for a person's decision and return it; polls too, because a signal may be lost."""
        while True:
            with anyio.move_on_after(_CHECK_EVERY_S):
                await news.wait()
            try:
                found = [one for one in await self._store.questions() if one.name == name]
            except StoreUnavailable:
                found = []
            if found and found[0].verdict is not None:
                return found[0].verdict
            await anyio.sleep(_AGAIN_S)

    async def _end(self, turn: Turn, step: Step, verdict: str) -> Mapping[str, Any]:
        """Close a question, unless it is decided; what counts."""
        name = str(step.request["name"])
        notice: list[NewOutbound] = []
        if turn.channel in self._commit.channels:
            said = outcome(name, str(step.request["call"]["name"]), verdict)
            with suppress(PlaceUnknown):  # it is closed in any case
                notice = await self.questions.notice(turn, name, said)
        return await self._commit.retry_until_stored(
            lambda: self._store.settle(turn, replace(step, result={"verdict": verdict}), notice)
        )

    async def _end_quietly(self, turn: Turn, step: Step) -> None:
        try:
            await self._end(turn, step, ENDED)
        except LostTurn:
            return  # whoever has it now closes it


class _Person:
    """Implements `agent_core.tools.person_port.PersonPort` for one claimed turn."""

    def __init__(self, asking: ServerQuestions, turn: Turn, newest: int) -> None:
        self._asking = asking
        self._turn = turn
        self._newest = newest

    async def fill_in(self, form: Form, *, seconds: float) -> FormReply:
        self._newest += 1
        try:
            return await self._asking.ask(self._turn, self._newest, form, seconds)
        except Exception:  # noqa: BLE001 - it must not cost the other calls of the connection anything
            _log.exception("mcp.question_failed", server=form.asker)
            return FormReply("cancel", why="the question could not be asked")


def _reply(decided: Mapping[str, Any]) -> FormReply:
    verdict = str(decided.get("verdict"))
    if verdict == ANSWERED:
        content = decided.get("content")
        return FormReply("accept", dict(content) if isinstance(content, dict) else {})
    action, why = _REPLIES.get(verdict, ("cancel", "the call has ended"))
    return FormReply(action, why=why)
