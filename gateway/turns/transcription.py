"""
Transcribes the sound files of a turn before a model is asked. These are voice messages and sound files of
mails. Transcripts are steps numbered downwards from -1, so that none is made or paid twice. The words are
shown below the text and are never commands; a yes or no can answer a question (`WordedAnswers.spoken`).
Nothing is decoded here; the length comes from `agent_core.media.sound_file`. Files that cannot be transcribed
are reported in the answer; temporary failures are retried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from agent_core.bounded import Bounded
from agent_core.errors import (
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelUnavailable,
    ModelUnreadable,
    StorageUnavailable,
)
from agent_core.language import _, gettext_noop, list_of
from agent_core.messages import Attachment, FileTranscript, InboundMessage
from agent_core.ports import AttachmentPort
from gateway.budget.budget_policy import BudgetTier
from gateway.budget.metering import UsageMeter
from gateway.store.stores import Queue, Step, Turn
from gateway.turns.questions.question_text import quote

if TYPE_CHECKING:
    from agent_core.media.transcript import Clip, Transcript, TranscriptionPort
    from agent_core.models import Usage

STEP = "heard"
"""The kind of a step that is a transcript."""
_AT_ONCE = 2
_QUOTED_CHARS = 600
_MAX_FILES = 20
_NAMED = 3
_AWAY = gettext_noop("The speech recognition cannot be reached at the moment.")
_TOO_MUCH = gettext_noop("this is more than I can listen to at once; please send it again later, or write")
_TOO_MANY = gettext_noop("I listen to the first {n} sounds of a message")
_BUSY = gettext_noop("The speech recognition gets more requests than it allows; I will try again.")
_ENDINGS = {"ogg": "audio/ogg", "wav": "audio/wav", "mp3": "audio/mpeg", "m4a": "audio/mp4"}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TranscriptionLimits:
    """
    The limits of transcription: ``seconds`` of a message's sound, ``size_bytes`` of a file.

    ``patience_s`` is the wait for an unavailable provider, after which the turn goes on; ``usd_per_minute``
    looks the price up; ``longest_s`` is the most of one turn.
    """

    seconds: float
    size_bytes: int
    patience_s: float
    usd_per_minute: Callable[[], float | None] = lambda: None
    longest_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class TranscribedTurn:
    """
    The result of transcribing: the turn with transcripts (`MessageNotes.heard`), a ``note`` for the person.

    ``is_all``: there is nothing else, so the note is the answer.
    """

    turn: Turn
    note: str = ""
    is_all: bool = False


def sound_files(message: InboundMessage) -> Sequence[Attachment]:
    """The files of a message that are transcribed."""
    if message.kind != "message":
        return ()
    recorded = message.context.spoken
    by_mail = message.context.subject is not None
    return [
        file
        for file in message.attachments
        if file.sha256 in recorded or (by_mail and is_sound_type(file.media_type))
    ]


@dataclass(eq=False)
class Transcription:
    """Transcribes the sound files of turns. One instance serves all sessions."""

    store: Queue
    attachments: AttachmentPort
    _: KW_ONLY
    make: Callable[[], TranscriptionPort]
    limits: TranscriptionLimits

    def __post_init__(self) -> None:
        self._engine: TranscriptionPort | None = None
        self._slots = anyio.CapacityLimiter(_AT_ONCE)
        self._for_others = anyio.CapacityLimiter(_AT_ONCE - 1)
        self._lately: Bounded[tuple[str, str], dict[str, Any]] = Bounded(8)

    async def transcribe_turn(
        self, turn: Turn, asked: Turn, steps: Sequence[Step], meter: UsageMeter
    ) -> TranscribedTurn:
        """
        Return the turn ``asked`` with the transcripts of its sound files.

        Raises a temporary ModelError, BudgetSpent, LostTurn, StoreUnavailable or StorageUnavailable.
        """
        if not any(sound_files(row.message) for row in asked.rows):
            return TranscribedTurn(asked)
        known = {step.digest: dict(step.result) for step in steps if step.kind == STEP and step.result}
        number = min((step.number for step in steps), default=0)
        until = anyio.current_time() + self.limits.longest_s
        rows = []
        for row in asked.rows:
            known = {**(row.message.notes.known_words or {}), **known}
            left_s, told = self.limits.seconds, []
            sounds = sound_files(row.message)
            for file in sounds[:_MAX_FILES]:
                if file.sha256 not in known:
                    number = min(number, 0) - 1
                    known[file.sha256] = found = await self._transcribe_until(
                        until, turn, file, left_s, meter
                    )
                    step = Step(number, STEP, file.sha256, {"name": file.name}, found)
                    await self.store.turns.record_step_result(turn, step)
                    if "text" not in found:  # it may be heard when it is asked anew
                        self._lately.pop((str(turn.session), file.sha256), None)
                seconds = known[file.sha256].get("seconds", 0.0)
                left_s -= seconds if seconds <= left_s else 0.0  # what is too long was not listened to
                told.append(FileTranscript(name=file.name, **known[file.sha256]))
            told += [
                FileTranscript(name=file.name, why_not=_(_TOO_MANY, n=_MAX_FILES))
                for file in sounds[_MAX_FILES:]
            ]
            notes = replace(row.message.notes, heard=tuple(told))
            rows.append(replace(row, message=row.message.with_notes(notes)))
        return _hearing(replace(asked, rows=tuple(rows)))

    async def aclose(self) -> None:
        """Close the transcriber."""
        if self._engine is not None:
            await self._engine.aclose()

    async def _transcribe_until(
        self, until: float, turn: Turn, file: Attachment, left_s: float, meter: UsageMeter
    ) -> dict[str, Any]:
        """Transcribe a file, unless the time of the turn ends before."""
        with anyio.move_on_after(max(0.0, until - anyio.current_time())):
            return await self._transcribe_once(turn, file, left_s, meter)
        _log.warning("voice.too_much", limit_s=self.limits.longest_s)
        return {"why_not": _TOO_MUCH, "seconds": 0.0}

    async def _transcribe_once(
        self, turn: Turn, file: Attachment, left_s: float, meter: UsageMeter
    ) -> dict[str, Any]:
        """Transcribe a file, or reuse a recent result: a refused step or repeated question pays once."""
        found = self._lately.get((str(turn.session), file.sha256))
        if found is None:
            async with AsyncExitStack() as slots:
                if meter.tier is not BudgetTier.OWNER:  # the owner waits for one sound of others at the most
                    await slots.enter_async_context(self._for_others)
                await slots.enter_async_context(self._slots)
                found = await self._transcribe(turn, file, left_s, meter)
            self._lately[str(turn.session), file.sha256] = found
        return found

    async def _transcribe(
        self, turn: Turn, file: Attachment, left_s: float, meter: UsageMeter
    ) -> dict[str, Any]:
        """Transcribe a file; return the words, or ``why_not``, as JSON."""
        from agent_core.media.sound_file import NotAudio  # noqa: PLC0415 - only where there is sound
        from agent_core.media.transcript import TranscriptionFailed  # noqa: PLC0415 - likewise

        seconds = 0.0
        try:
            clip = await self._clip(file)
            seconds = clip.seconds
            transcript = await self._paid(self._short_enough(clip, left_s), meter)
        except NotAudio as error:
            why = _("it {problem}", problem=_(str(error)))
        except TranscriptionFailed as error:
            why = str(error)
        except ModelError as error:
            if error.temporary and turn.first_deferred_s < self.limits.patience_s:
                raise _later(error) from error
            why = _in_words(error)
            _log.warning("voice.not_heard", error=str(error), seconds=round(seconds, 1))
        else:
            heard = transcript.heard
            _log.info("voice.heard", seconds=round(seconds, 1), unsure=heard.unsure, chars=len(heard.text))
            if heard.text:
                return {"text": heard.text, "seconds": round(seconds, 2), "unsure": heard.unsure}
            why = _("I heard no words in it")
        return {"why_not": why, "seconds": round(seconds, 2)}

    def _short_enough(self, clip: Clip, left_s: float) -> Clip:
        from agent_core.media.transcript import TranscriptionFailed  # noqa: PLC0415 - only where there is sound

        if clip.seconds > left_s:
            raise TranscriptionFailed(_too_long(clip.seconds, self.limits.seconds))
        return clip

    async def _clip(self, file: Attachment) -> Clip:
        from agent_core.media.sound_file import sound_file_of  # noqa: PLC0415 - only where there is sound
        from agent_core.media.transcript import Clip, TranscriptionFailed  # noqa: PLC0415 - likewise

        most = self.limits.size_bytes
        if file.size_bytes > most:
            raise TranscriptionFailed(
                _("it is larger than {size} MB, the most that I listen to", size=f"{most / 1_000_000:.3g}")
            )
        try:
            content = await self.attachments.read(file, max_bytes=most)
        except LookupError as error:
            raise TranscriptionFailed(_("the file is no longer kept")) from error
        except OSError as error:
            raise StorageUnavailable(f"a sound file cannot be read: {type(error).__name__}") from error
        sound = await anyio.to_thread.run_sync(sound_file_of, content)
        return Clip(content, f"sound.{sound.kind}", _ENDINGS[sound.kind], sound.seconds)

    async def _paid(self, clip: Clip, meter: UsageMeter) -> Transcript:
        """One transcript; what cannot be read is asked for once more."""
        try:
            return await self._once(clip, meter)
        except ModelUnreadable as error:
            if error.kind == "slow":
                raise
            return await self._once(clip, meter)

    async def _once(self, clip: Clip, meter: UsageMeter) -> Transcript:
        from agent_core.media.transcript import cost_of  # noqa: PLC0415 - only where there is sound

        if self._engine is None:
            self._engine = self.make()
        guess = cost_of({}, clip.seconds, model="", usd_per_minute=self.limits.usd_per_minute())
        await meter.record()
        await meter.enter(guess.prompt_tokens)
        usage: Usage | None = guess  # what was not answered in a way that can be read was probably paid
        try:
            transcript = await self._engine.transcribe(clip)
            usage = transcript.usage
        except ModelUnreadable:
            raise
        except ModelError:
            usage = None
            raise
        finally:
            meter.settle(usage)
        return transcript


def is_sound_type(media_type: str) -> bool:
    """Return True if a media type is that of a sound."""
    return media_type.startswith("audio/") or media_type == "application/ogg"


def _hearing(turn: Turn) -> TranscribedTurn:
    """Return the text about failed and uncertain transcriptions, and if it is the whole answer."""
    told = [one for row in turn.rows for one in row.message.notes.heard]
    failed = [one for one in told if one.why_not]
    reasons = dict.fromkeys(one.why_not for one in failed)
    lines = [
        _(
            "I could not listen to {names}: {why}.",
            names=_names([one.name for one in failed if one.why_not == why]),
            why=_(why),
        )
        for why in reasons
    ]
    lines += [
        quote(_("I am not sure that I understood this correctly: {text}", text=one.text), _QUOTED_CHARS)
        for one in told
        if one.unsure
    ]
    files = sum(len(row.message.attachments) for row in turn.rows)
    silent = not any(row.message.text.strip() or row.message.background for row in turn.rows)
    titled = any((row.message.context.subject or "").strip() for row in turn.rows)
    is_all = bool(failed) and len(failed) == files and silent and not titled
    return TranscribedTurn(turn, "\n\n".join(lines), is_all)


def _names(files: Sequence[str]) -> str:
    """Names of files for a sentence; of many the first."""
    shown = [f"`{' '.join(name.replace('`', chr(39)).split())}`" for name in files[:_NAMED]]
    if len(files) > _NAMED:
        shown[-1:] = [_("{n} more", n=len(files) - _NAMED + 1)]
    return list_of(shown)


def _too_long(seconds: float, limit_s: float) -> str:
    return _(
        "it lasts {span}, and I listen to {most} of one message at most",
        span=_span(seconds),
        most=_span(limit_s),
    )


def _span(seconds: float) -> str:
    if seconds >= 7200:
        return _("{n} hours", n=f"{seconds / 3600:.3g}")
    if seconds >= 120:
        return _("{n} minutes", n=f"{seconds / 60:.3g}")
    return _("{n} seconds", n=f"{seconds:.3g}")


def _later(error: ModelError) -> ModelError:
    """The same error in words about listening; the turn is tried again."""
    if isinstance(error, ModelRateLimited):
        return ModelRateLimited(str(error), retry_after_s=error.retry_after_s, public=_BUSY)
    return ModelUnavailable(str(error), public=_AWAY)


def _in_words(error: ModelError) -> str:
    """Explain a failed transcription, as a clause that anybody may read."""
    if isinstance(error, ModelAuthFailed) or error.fields.get("operator"):
        return _("the speech recognition refuses my login; my operator must check it")
    if isinstance(error, ModelUnreadable):
        if error.kind == "slow":
            return _("the speech recognition took too long")
        return _("the speech recognition gave an answer that I cannot read")
    if error.temporary:
        return _("the speech recognition cannot be reached; please send it again later, or write")
    return _("the speech recognition refused it")
