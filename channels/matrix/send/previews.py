"""
Streaming previews: people can read an answer while the model writes it, as one event that is edited a few
times. Edits become rarer, and a rate limit doubles the pause, since the final text must not wait behind
previews. The finished answer comes from the outbox and edits the preview (``sender``), after
`StreamingPreview.final_event_id` waited for one in flight. A withdrawn question's preview is redacted
(`StreamingPreview.ended`). Event names derive from the question, so that nothing must survive a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import structlog

from agent_core.bounded import Bounded
from agent_core.messages import MessageContext, OutboundMessage, SessionKey
from channels.base import AckState, ChannelClock, ChannelError, ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import TokenLost
from channels.matrix.config import StreamingConfig
from channels.matrix.events.inbound_events import MatrixRoute
from channels.matrix.events.outbound_events import preview_of, transaction_id
from channels.matrix.send.event_sender import EventSender

ELLIPSIS = " …"
MAX_BYTES = 8_000
"""Longer previews are not shown: with encryption an edit carries the text several times over."""
_MAX_KNOWN = 500
_CHECK_EVERY_S = 1.0
_TRIES_BACK = 5
_log = structlog.get_logger(__name__)


class Pace:
    """
    Decides when an unfinished answer may be shown again. Pure: times are seconds.

    ``settings`` has interval and number; the first update comes an interval after ``now``.
    """

    def __init__(self, settings: StreamingConfig, now: float) -> None:
        self.interval_s = settings.min_interval_s
        self._left = settings.max_edits + 1
        self._next_at = now + self.interval_s

    def due(self, now: float) -> bool:
        """Return True if an update is allowed now."""
        return self._left > 0 and now >= self._next_at

    def note_display(self, now: float) -> None:
        """Note that it was shown."""
        self._left -= 1
        self._next_at = now + self.interval_s
        self.interval_s *= 1.5

    def slow_down(self, now: float, retry_after_s: float) -> None:
        """Note that the homeserver limits the rate of requests."""
        self.interval_s = max(self.interval_s * 2, retry_after_s)
        self._next_at = now + self.interval_s


@dataclass(slots=True)
class _Answer:
    """An unfinished answer."""

    message: OutboundMessage
    pace: Pace
    event_id: str | None = None
    edits: list[str] = field(default_factory=list)
    number: int = 0
    text: str = ""
    wanted: str = ""
    uncertain: tuple[str, str] | None = None
    """Name and text of a preview of which nobody knows whether it has arrived."""
    redact_at: float | None = None
    tries_back: int = 0
    busy: anyio.Lock = field(default_factory=anyio.Lock)


class StreamingPreview:
    """The unfinished answers of one account."""

    def __init__(self, name: str, account: str, settings: StreamingConfig, clock: ChannelClock) -> None:
        self._name = name
        self._account = account
        self._settings = settings
        self._clock = clock
        self._answers: Bounded[str, _Answer] = Bounded(_MAX_KNOWN)
        self._current: dict[SessionKey, str] = {}
        self._lost: dict[str, str] = {}
        self._lost_tries = 0
        self._look_for_lost_at = 0.0
        self._news = anyio.Event()

    # ── what the channel is told ──
    def note_question(self, session: SessionKey, room_id: str, context: MessageContext) -> None:
        """Note that a question is being worked on; of several answered together, the last one counts."""
        question = context.read_route(MatrixRoute).event_id
        if not question:
            return
        self._current[session] = question
        known = self._answers.get(question)
        now = self._clock.monotonic()
        if known is not None:
            known.redact_at = None
            known.pace = Pace(self._settings, now)
            return
        asked = OutboundMessage(
            id="-",
            channel=self._name,
            account=self._account,
            session=SessionKey(self._name, room_id, session.thread),
            text="",
            created_at=self._clock.now(),
            context=context,
        )
        self._answers[question] = _Answer(preview_of(asked), Pace(self._settings, now))

    def update(self, session: SessionKey, text: str) -> None:
        """Want the answer's text so far to be shown."""
        answer = self._answers.get(self._current.get(session, ""))
        if answer is not None:
            answer.wanted = text
            self._news.set()

    def end_preview(self, room_id: str, context: MessageContext, stage: AckState) -> None:
        """
        Note that the work on a question is over; its answer, if any, is in the outbox.

        ``left_over``: it was taken back, perhaps in another life of the process; nothing of it shall stay.
        """
        question = context.left_over or context.read_route(MatrixRoute).event_id
        answer = self._answers.get(question)
        if answer is None and context.left_over and len(self._lost) < _MAX_KNOWN:
            self._lost[question] = room_id
        if answer is not None:
            answer.wanted = ""
            after_s = 5.0 if stage is AckState.FAILED else 120.0
            answer.redact_at = self._clock.monotonic() + after_s
        # Even if nothing of it was shown yet: an earlier life of the process may have.
        self._news.set()

    async def final_event_id(self, context: MessageContext, sending: EventSender) -> str | None:
        """Stop previews and return the event with the answer so far. Raises ChannelUnavailable."""
        answer = self._answers.get(context.read_route(MatrixRoute).event_id)
        if answer is None:
            return None
        answer.wanted = ""
        with anyio.move_on_after(30.0) as limit:
            async with answer.busy:
                if answer.uncertain is not None:
                    await self._again(answer, sending)
                return answer.event_id
        assert limit.cancelled_caught
        raise ChannelUnavailable("an unfinished answer is still on its way")

    def done(self, question: str) -> None:
        """Note that the finished answer to this event is there."""
        self._answers.pop(question, None)
        self._current = {key: value for key, value in self._current.items() if value != question}

    def remove_in_old_room(self, room_id: str, question: str) -> None:
        """Remove the unfinished answer in ``room_id``, which the room of the answer replaces."""
        if not self._settings.enabled:
            return
        answer = self._answers.get(question)
        if answer is not None:
            answer.wanted, answer.redact_at = "", self._clock.monotonic()
        elif len(self._lost) < _MAX_KNOWN:
            self._lost[question] = room_id
        self._news.set()

    # ── work ──
    async def run(self, sending: EventSender) -> None:
        """Show answers until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                news = self._news = anyio.Event()
                now = self._clock.monotonic()
                for answer in list(self._answers.values()):
                    due = answer.wanted and answer.wanted != answer.text and answer.pace.due(now)
                    if due and not answer.busy.locked():
                        group.start_soon(self._show, answer, sending)
                for question, answer in list(self._answers.items()):
                    if answer.redact_at is not None and answer.redact_at <= now:
                        await self._drop(question, answer, sending)
                await self._drop_lost(sending)
                open_ones = bool(self._lost) or any(
                    one.wanted or one.redact_at is not None for one in self._answers.values()
                )
                if open_ones:
                    await anyio.sleep(min(_CHECK_EVERY_S, self._settings.min_interval_s / 4))
                else:
                    await news.wait()

    async def _show(self, answer: _Answer, sending: EventSender) -> None:
        async with answer.busy:
            text = answer.wanted
            if not text or not answer.pace.due(self._clock.monotonic()):
                return
            if len(text.encode("utf-8", "replace")) > MAX_BYTES:
                answer.wanted = ""
                return
            answer.number += 1
            name = transaction_id(answer.message.id)
            if answer.event_id is not None:
                name = f"{name}.{answer.number}"
            answer.uncertain = (name, text)
            try:
                # Not to be cut off by the end of the turn: then nobody would know whether it arrives.
                await self._again(answer, sending)
            except ChannelError as error:
                answer.pace.slow_down(self._clock.monotonic(), error.retry_after_s or 0.0)
                if getattr(error, "fields", {}).get("status") == 429:
                    answer.uncertain = None
                _log.info("matrix.preview_missed", error=str(error))
            else:
                answer.text = text
                answer.pace.note_display(self._clock.monotonic())

    async def _again(self, answer: _Answer, sending: EventSender) -> None:
        """Send the newest preview under its name, however often it was tried before."""
        assert answer.uncertain is not None
        name, text = answer.uncertain
        message = answer.message.model_copy(update={"text": text + ELLIPSIS})
        try:
            shown = await sending.show(message, name, answer.event_id)
        except TokenLost as lost:
            raise ChannelUnavailable("the token was refused while an answer was being shown") from lost
        answer.uncertain = None
        if answer.event_id is None:
            answer.event_id = shown
        elif shown is not None and shown not in answer.edits:
            answer.edits.append(shown)

    async def _drop_lost(self, sending: EventSender) -> None:
        """Look for what is shown of answers that will never come, and take it back; one at a time."""
        now = self._clock.monotonic()
        if not self._lost or now < self._look_for_lost_at:
            return
        question, room_id = next(iter(self._lost.items()))
        asked = OutboundMessage(
            id="-",
            channel=self._name,
            account=self._account,
            session=SessionKey(self._name, room_id),
            text="",
            created_at=self._clock.now(),
            context=MessageContext().with_route(MatrixRoute(event_id=question)),
        )
        try:
            await sending.redact_preview(preview_of(asked))
        except (ChannelError, TokenLost) as error:
            self._lost_tries += 1
            self._look_for_lost_at = now + (getattr(error, "retry_after_s", None) or 5.0)
            _log.info("matrix.preview_kept", error=str(error), tries=self._lost_tries)
            if self._lost_tries < _TRIES_BACK and not isinstance(error, DeliveryFailed):
                return
        self._lost_tries = 0
        self._lost.pop(question, None)

    async def _drop(self, question: str, answer: _Answer, sending: EventSender) -> None:
        """Its turn is over and no answer has come."""
        if answer.event_id is not None:
            room_id, name = answer.message.session.conversation, transaction_id(answer.message.id)
            try:
                # The edits too: without their event nobody sees them, and yet they would be there.
                while answer.edits:
                    await sending.redact(room_id, answer.edits[-1], f"{name}.{len(answer.edits)}r")
                    answer.edits.pop()
                await sending.redact(room_id, answer.event_id, f"{name}r")
            except ChannelError as error:
                answer.tries_back += 1
                _log.info("matrix.preview_kept", error=str(error), tries=answer.tries_back)
                if answer.tries_back < _TRIES_BACK:
                    answer.redact_at = self._clock.monotonic() + (error.retry_after_s or 5.0)
                    return
        self.done(question)
        # What an earlier life of the process has shown of it is not known here.
        self._lost[question] = answer.message.session.conversation
