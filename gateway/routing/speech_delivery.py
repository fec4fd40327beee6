"""
Turns an answer that is to be spoken into a voice message, on its way through the outbox. A row for
`SPEECH_CHANNEL` is committed with the answer, whose text waits for nothing. `SpeechChannel.deliver` makes the
sound, stores it, and in one transaction ends the row, records the cost and puts the file into the real
channel's outbox (`OutboxStore.pass_on`). A row found ``uncertain`` after a crash was not passed on and is
spoken, and paid, again. Texts that are never spoken leave no dead letter, only a log line and ``status``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from agent_core.bounded import Bounded
from agent_core.errors import ModelError, ModelRefused, ModelUnreadable
from agent_core.language import _
from agent_core.messages import OutboundKind, OutboundMessage, SessionKey, Speech
from agent_core.models import Purpose, Usage
from agent_core.ports import Clock
from channels.attachments import AttachmentRefused, AttachmentStore
from channels.base import (
    Capabilities,
    Channel,
    ChannelUnavailable,
    DeliveryFailed,
    Inbox,
    Receipt,
    Redelivery,
    SupportsLeaving,
)
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.states import IllegalMove, OutboxState
from gateway.store.stores import NewOutbound, OutboxRow, Queue

if TYPE_CHECKING:
    from agent_core.media.speech import SpeechPort, SpeechResult

_LATE_AFTER = timedelta(minutes=10)
"""An answer that was read so long ago is not spoken any more."""
_TEXT_GONE = frozenset({OutboxState.DEAD, OutboxState.UNKNOWN, OutboxState.HELD})
_QUOTED_CHARS = 60
_log = structlog.get_logger(__name__)

Refusal = Callable[[SessionKey, bool], Awaitable[str]]
"""Why the budget lets nothing be spoken in a conversation now, for the owner or others; empty: it does."""
Paid = Callable[[SessionKey, str], Awaitable[None]]
"""Notes what a text has cost of which came nothing that can be read: it was probably paid."""


class SpeechState:
    """The state of speaking, for ``status``. One for all accounts."""

    def __init__(self) -> None:
        self._spoken = 0
        self._not_spoken = 0
        self._trouble: str | None = None

    def note_spoken(self) -> None:
        """Count a spoken answer; the last error is over."""
        self._spoken += 1
        self._trouble = None

    def count_failure(self, why: str) -> None:
        """Count an answer that is not spoken."""
        self._not_spoken += 1
        self._trouble = why

    def state(self) -> dict[str, Any]:
        """The counts and the last error."""
        return {"spoken": self._spoken, "not_spoken": self._not_spoken, "trouble": self._trouble}


class SpeechChannel:
    """
    Implements `Channel` for one account's rows to speak; receives nothing.

    ``voice`` returns the engine (None: speech is off by now); ``refusal`` and ``paid`` are the budget's.
    """

    name = SPEECH_CHANNEL
    capabilities = Capabilities(Redelivery.PROBE)

    def __init__(
        self,
        to: Channel,
        *,
        store: Queue,
        voice: Callable[[], SpeechPort] | None,
        files: AttachmentStore,
        refusal: Refusal,
        paid: Paid,
        counts: SpeechState,
        clock: Clock,
    ) -> None:
        self.account = to.account
        self._to = to
        self._store = store
        self._voice = voice
        self._files = files
        self._refusal = refusal
        self._paid = paid
        self._counts = counts
        self._clock = clock
        self._made: Bounded[str, SpeechResult] = Bounded(8)

    async def run(self, inbox: Inbox) -> None:
        """Receive nothing."""
        await anyio.sleep_forever()

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Have a text spoken, and pass it on; see `Channel.deliver`."""
        row = await self._store.outbox.find_by_key(message.id)
        if row is None:
            raise DeliveryFailed("it is no longer in the outbox")
        why = await self._why_not(row)
        if why:
            return self._not_spoken(message, why)
        try:
            spoken = await self._spoken(message, uncertain)
            file = await self._files.save(spoken.name, spoken.media_type, spoken.content)
        except ModelError as error:
            if isinstance(error, ModelUnreadable):
                await self._paid(message.session, message.text)
            if error.temporary and not self._is_late(message):
                wait_s = getattr(error, "retry_after_s", None)
                raise ChannelUnavailable(str(error), retry_after_s=wait_s) from error
            return self._not_spoken(message, str(error))
        except AttachmentRefused as error:
            return self._not_spoken(message, str(error))
        usage = Usage(calls=spoken.calls, cost_usd=spoken.cost_usd, model=spoken.model)
        voice_message = NewOutbound(
            channel=self._to.name,
            account=message.account,
            session=message.session,
            text=_caption(message.text, spoken) if self._to.capabilities.email_style else "",
            kind=OutboundKind.REPLY,
            context=replace(message.context, speech=_sound_facts(spoken)),
            attachments=(file,),
        )
        try:
            passed_on = await self._store.outbox.pass_on(
                row, voice_message, usage=usage, purpose=Purpose.SPEECH
            )
        except IllegalMove:  # given up meanwhile, as the bot was removed there; it is paid all the same
            self._made.pop(message.id, None)
            await self._paid(message.session, message.text)
            raise
        self._made.pop(message.id, None)
        self._counts.note_spoken()
        _log.info(
            "speech.made",
            channel=self._to.name,
            outbox=passed_on.id,
            seconds=None if spoken.sound is None else round(spoken.sound.duration_s, 1),
            size_bytes=file.size_bytes,
        )
        return Receipt(passed_on.message.id)

    async def _spoken(
        self, message: OutboundMessage, uncertain: Callable[[], Awaitable[None]]
    ) -> SpeechResult:
        """The sound of a text. While a full disk does not take it, it is kept here and not paid again."""
        await uncertain()
        spoken = self._made.get(message.id)
        if spoken is None:
            if self._voice is None:
                raise ModelRefused("speaking is switched off")
            spoken = self._made[message.id] = await self._voice().speak(message.text)
        return spoken

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Say no: what was passed on is not asked about."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Do nothing: the text has been sent already."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Do nothing: a sound has no preview."""

    async def aclose(self) -> None:
        """Close nothing: whoever made the speaker closes it."""

    def _is_late(self, message: OutboundMessage) -> bool:
        return self._clock.now() - message.created_at > _LATE_AFTER

    async def _why_not(self, row: OutboxRow) -> str:
        """Return why a text is not spoken, or "". Raises ChannelUnavailable."""
        message = row.message
        if self._is_late(message):
            return "it is too long ago"
        if isinstance(self._to, SupportsLeaving) and not await self._to.is_in(message.session):
            return "I am no longer in that conversation"
        if row.inbox_id is not None:
            found = await self._store.inbox.row(row.inbox_id)
            texts = [] if found is None else [each for each in found[1] if each.id < row.id]
            if any(each.state in _TEXT_GONE for each in texts):
                return "its text did not arrive"
        owner = message.context.speech is not None and message.context.speech.owner
        return await self._refusal(message.session, owner)

    def _not_spoken(self, message: OutboundMessage, why: str) -> Receipt:
        self._counts.count_failure(why)
        _log.warning("speech.failed", channel=self._to.name, error=why, detail="the text was sent as always")
        return Receipt(f"{message.id} not spoken")


def _sound_facts(spoken: SpeechResult) -> Speech:
    """
    Return duration and waveform for a voice message; empty for any other file.

    Clients refuse a voice message that is no Ogg (Element X on iOS), and play the same as a file.
    """
    if spoken.sound is None or spoken.media_type != "audio/ogg":
        return Speech()
    return Speech(duration_ms=round(spoken.sound.duration_s * 1000), waveform=tuple(spoken.sound.waveform))


def _caption(text: str, spoken: SpeechResult) -> str:
    begins = text if len(text) <= _QUOTED_CHARS else text[:_QUOTED_CHARS].rsplit(" ", 1)[0] + " …"
    seconds = 0 if spoken.sound is None else round(spoken.sound.duration_s)
    lasts = f" ({seconds // 60}:{seconds % 60:02d})" if seconds else ""
    return _("My last answer, spoken{lasts}: “{text}”", lasts=lasts, text=begins)
