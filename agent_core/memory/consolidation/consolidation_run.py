"""
Consolidates a conversation: calls the model, processes its answers, and commits one atomic record at the end.
Rules are in ``policy``, texts in ``prompts``, facts that must survive in ``key_facts``. Nobody waits for it,
and a failure changes nothing: the messages stay in the prompt and the histories are never written. A visit
consolidates a few segments, halving one too long for the model. A concurrent visit has nothing to do; another
process's consolidation or reset wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import cast

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import AgentError, ContextTooLong, CursorMoved, StorageUnavailable
from agent_core.memory.consolidation import consolidation_policy, prompts
from agent_core.memory.consolidation.consolidation_policy import ConsolidationRules, Segment
from agent_core.memory.consolidation.key_facts import (
    KeyFact,
    add_days,
    essentials,
    excerpts,
    join_list,
    merge_list,
    missing,
    split_list,
)
from agent_core.memory.document_cache import DocumentCache
from agent_core.memory_ports import MemoryPort
from agent_core.models import (
    AnswerEnd,
    HistoryTail,
    Message,
    ModelChunk,
    Usage,
    in_force,
    is_undone,
    withdrawn_ids,
)
from agent_core.ports import LLMPort
from agent_core.prompt_budget import TokenEstimate
from agent_core.text import word_count

CALL_LIMIT_S = 180.0
_ROUNDS = 4
_SMALLEST_SEGMENT_TOKENS = 500
_PAGE = 5000
_GIANTS = (8, 64)
_READ_MORE = 4
_CHARS_PER_LIST_TOKEN = 3
_LONGEST = 2  # times its share of a prompt: a summary that was not made shorter once is kept whole

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Attempt:
    """The cost of the calls of one visit, and why the last one failed."""

    usage: Usage = field(default_factory=Usage)
    failure: str = ""
    too_long: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class ConsolidationResult:
    """
    The result of a visit: consolidated segments, why it stopped, its cost.

    ``wait_s``: nothing failed, but it cannot continue before; ``failure`` says why.
    """

    segments: int = 0
    failure: str = ""
    usage: Usage = field(default_factory=Usage)
    wait_s: float = 0.0


class Consolidation(ABC):
    """The part of `MemoryManager` that consolidates, by ``llm`` if given."""

    def __init__(
        self,
        storage: MemoryPort,
        llm: LLMPort | None,
        *,
        estimate: Callable[[], TokenEstimate],
        on_unusable: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._storage = storage
        self.remembered = DocumentCache(storage, on_unusable)
        self._llm = llm
        self._estimated_by = estimate
        self._consolidating: set[str] = set()

    @property
    def estimate(self) -> TokenEstimate:
        """The current estimate of tokens."""
        return self._estimated_by()

    @property
    @abstractmethod
    def _rules(self) -> ConsolidationRules:
        """The rules by what the model can read now."""

    @property
    @abstractmethod
    def _summary_tokens(self) -> int:
        """The share of a prompt that a summary may have; a longer one is rewritten."""

    async def consolidate_if_due(self, session_id: str) -> ConsolidationResult:
        """Consolidate a session that is too long, unless that is running. Raises nothing but cancellation."""
        if self._llm is None or session_id in self._consolidating:
            return ConsolidationResult()
        self._consolidating.add(session_id)
        attempt = Attempt()
        segments = 0
        try:
            while segments < _ROUNDS and await self._consolidate(session_id, attempt):
                segments += 1
        except CursorMoved as error:
            log.info("consolidation.overtaken", session=session_id, reason=str(error))
        except StorageUnavailable as error:
            attempt.failure = str(error)
            log.warning("consolidation.not_saved", session=session_id, **error.fields)
        except Exception as error:  # what was spent is told all the same, and the next try waits
            attempt.failure = _reason(error)
            log.exception("consolidation.crashed", session=session_id)
        finally:
            self._consolidating.discard(session_id)
        return ConsolidationResult(segments, attempt.failure, attempt.usage)

    async def _consolidate(self, session_id: str, attempt: Attempt | None = None) -> bool:
        """Consolidate the next segment; False if not due or failed. Raises StorageUnavailable."""
        attempt = attempt if attempt is not None else Attempt()
        rules = self._rules
        tail = await self._storage.load_history(session_id, max_chars=self._chars(rules.max_tokens))
        keep = consolidation_policy.keep_for(tail, rules, self.estimate)
        if keep is None:
            return False
        page = await self._page(session_id, tail.cursor, keep)
        for _ in range(6):
            segment = consolidation_policy.plan(page, keep, rules, self.estimate)
            if segment is None:
                return False
            undone = await self._undone(session_id)
            told = replace(segment, messages=tuple(in_force(segment.messages, undone)))
            summary = await self._summary(session_id, page, told, rules, attempt)
            if summary is not None:
                await self._check_undone(session_id, segment, undone)
                await self._save(session_id, segment, summary)
                return True
            if not attempt.too_long or rules.segment_tokens <= _SMALLEST_SEGMENT_TOKENS:
                return False
            rules = replace(rules, segment_tokens=max(_SMALLEST_SEGMENT_TOKENS, rules.segment_tokens // 2))
        return False

    async def _page(self, session_id: str, start: int, keep: int) -> HistoryTail:
        """
        The oldest messages after the cursor: more than one call can read, and more than one turn.

        A few giants can fill what is usually read; then they are read whatever their length. Raises
        `CursorMoved` if somebody has consolidated since ``start`` was read: what begins there is not due.
        """
        limits: list[tuple[int, int | None]] = [
            (_PAGE, self._chars(self._rules.segment_tokens * _READ_MORE)),
            *((count, None) for count in _GIANTS),
        ]
        page = HistoryTail()
        for max_messages, max_chars in limits:
            page = await self._storage.load_segment(
                session_id, start=start, max_messages=max_messages, max_chars=max_chars
            )
            if page.cursor != start:
                raise CursorMoved(f"the cursor is at {page.cursor} and not at {start} any more")
            if page.complete or consolidation_policy.plan(page, keep, self._rules, self.estimate) is not None:
                break
        return page

    async def _undone(self, session_id: str) -> frozenset[str]:
        """Return the ids withdrawn as far as the history after the cursor shows."""
        return withdrawn_ids((await self._storage.load_history(session_id)).messages)

    async def _check_undone(self, session_id: str, segment: Segment, undone: frozenset[str]) -> None:
        """Raise `CursorMoved` if something of a segment was taken back since ``undone`` was."""
        since = await self._undone(session_id) - undone
        if any(is_undone(message, since) for message in segment.messages):
            raise CursorMoved("some of it was withdrawn while it was consolidated")

    async def _save(self, session_id: str, segment: Segment, summary: str) -> None:
        # First the history: a cursor must never be more durable than the lines before it.
        await self._storage.sync_history(session_id)
        await self._storage.save_consolidation(
            session_id,
            summary=summary,
            cursor=segment.end,
            base_cursor=segment.start,
            private=segment.private,
            origins=segment.origins,
        )
        log.info(
            "conversation.consolidated",
            session=session_id,
            messages=len(segment.messages),
            cursor=segment.end,
            words=word_count(summary),
        )

    async def _summary(
        self,
        session_id: str,
        page: HistoryTail,
        segment: Segment,
        rules: ConsolidationRules,
        attempt: Attempt,
    ) -> str | None:
        """The whole new summary of the session, or None: then nothing is to be changed."""
        old = page.summary
        if old is None:
            old = await self._storage.load_session_summary(session_id)
        text = consolidation_policy.conversation_text(segment.messages, rules.segment_tokens, self.estimate)
        if not text:  # nothing was said: there is nothing to consolidate, and nothing to keep in the prompt
            return old
        prose, listed = split_list(old)
        recorded = consolidation_policy.newest_of(old, self._chars(self._summary_tokens) // 2)
        answer = await self._call_llm(
            prompts.consolidation_messages(text, segment.sentences, recorded=recorded),
            attempt=attempt,
            max_chars=_READ_MORE * consolidation_policy.max_answer_chars(segment.sentences),
        )
        new = consolidation_policy.accept_summary(answer, text, segment.sentences) if answer else None
        if answer and new is None:
            attempt.failure = "the model returned the conversation instead of a summary"
            log.warning("consolidation.refused", session=session_id, chars=len(answer))
        if new is None:
            return None
        document = (await self.remembered.document_for(segment.messages)).text
        told = [message for message in segment.messages if message.role in ("user", "assistant")]
        said = [(consolidation_policy.day_of(message), message.content) for message in told]
        wanted = await anyio.to_thread.run_sync(essentials, [text for _, text in said])
        lost = await self._lost(wanted, prose, new, document)
        if lost:
            new = await self._with_addition(new, lost, said, attempt)
        whole = f"{prose}\n\n{new}" if prose.strip() else new
        shorter = await self._maybe_meta_consolidate(whole, attempt=attempt)
        shorter = consolidation_policy.newest_of(shorter, _LONGEST * self._chars(self._summary_tokens))
        if shorter != whole:
            wanted = [*await anyio.to_thread.run_sync(essentials, [whole]), *wanted]
        lost = add_days(await self._lost(wanted, shorter, document), said)
        listed = merge_list(
            listed, lost, shorter, max_chars=self._summary_tokens // 2 * _CHARS_PER_LIST_TOKEN
        )
        return join_list(shorter, listed)

    async def _lost(self, wanted: Sequence[KeyFact], *texts: str) -> list[KeyFact]:
        """Return the facts that no text contains. In a thread: long texts take hundredths of a second."""
        return await anyio.to_thread.run_sync(missing, wanted, *texts)

    async def _with_addition(
        self, summary: str, lost: Sequence[KeyFact], said: Sequence[tuple[str, str]], attempt: Attempt
    ) -> str:
        """The summary with what it had left out, as far as the model gives it now. Asked once."""
        source = excerpts(lost, said, max_chars=8000)
        sentences = consolidation_policy.sentence_budget(len(lost))
        answer = await self._call_llm(
            prompts.addition_messages(source, [item.snippet for item in lost]),
            attempt=attempt,
            max_chars=_READ_MORE * consolidation_policy.max_answer_chars(sentences),
        )
        attempt.failure = ""  # without an answer the list at the end takes all of it
        more = consolidation_policy.accept_summary(answer, "", sentences) if answer else None
        still = missing(lost, more) if more else lost
        return f"{summary} {more}" if more and len(still) < len(lost) else summary

    async def _maybe_meta_consolidate(self, summary: str, *, attempt: Attempt | None = None) -> str:
        """The summary, rewritten if it has become too long. Without a better one it stays as it is."""
        if not consolidation_policy.too_long_to_keep(summary, self._summary_tokens, self.estimate):
            return summary
        attempt = attempt if attempt is not None else Attempt()
        sentences = consolidation_policy.META_SUMMARY_SENTENCES
        head, rest = consolidation_policy.readable(summary, self._chars(self._rules.segment_tokens) // 2)
        answer = await self._call_llm(
            prompts.meta_messages(head, sentences),
            attempt=attempt,
            max_chars=_READ_MORE * consolidation_policy.max_answer_chars(sentences),
        )
        attempt.failure = ""
        shorter = consolidation_policy.accept_summary(answer, head, sentences) if answer else None
        if answer is None or shorter is None or len(answer) >= len(head):
            return summary
        return f"{shorter}\n\n{rest}" if rest else shorter

    async def _call_llm(
        self, messages: list[Message], *, attempt: Attempt | None = None, max_chars: int = 50_000
    ) -> str | None:
        """Return an answer up to ``max_chars``, or None for a failure, an empty one or a timeout."""
        llm = self._llm
        assert llm is not None
        attempt = attempt if attempt is not None else Attempt()
        attempt.failure, attempt.too_long, attempt.timed_out = "", False, False
        text, end = "", AnswerEnd()
        before = attempt.usage
        try:
            with anyio.fail_after(CALL_LIMIT_S):
                chunks = await llm.chat(messages, [])
                async with aclosing(cast("AsyncGenerator[ModelChunk, None]", chunks)) as answer:
                    async for chunk in answer:
                        text += chunk if isinstance(chunk, str) else ""
                        attempt.usage += chunk if isinstance(chunk, Usage) else Usage()
                        end = chunk if isinstance(chunk, AnswerEnd) else end
                        if len(text) > max_chars:
                            break
        except TimeoutError:
            attempt.timed_out = True
            attempt.failure = f"no answer within {CALL_LIMIT_S:g} s"
        except Exception as error:  # noqa: BLE001 - consolidation can always wait, whatever the reason
            attempt.too_long = isinstance(error, ContextTooLong)
            attempt.failure = _reason(error)
        else:
            attempt.failure = _failure(text, end)
        if attempt.usage == before and (text or attempt.timed_out):
            # Cut off before it told what it cost, or it never tells: the tokens were spent all the same.
            attempt.usage += Usage(
                prompt_tokens=self.estimate.request(messages),
                completion_tokens=self.estimate.text(text),
                calls=1,
            )
        if attempt.failure:
            log.warning("consolidation.call_failed", reason=attempt.failure)
            return None
        return text.strip()

    def _chars(self, tokens: int) -> int:
        return self.estimate.chars(tokens)


def _failure(text: str, end: AnswerEnd) -> str:
    """Return why an answer is no summary; empty if it is one."""
    if end.is_refusal:
        return f"the model refused: {text[:200]}"
    if end.is_cut:
        return "the output limit cut the answer off"
    return "" if text.strip() else "an empty answer"


def _reason(error: Exception) -> str:
    """Describe an error for people; an unexpected one with its class."""
    return str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
