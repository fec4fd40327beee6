"""
Decides when a conversation is consolidated, which part of it, and whether the model's answer is accepted.
Pure. Above ``threshold`` messages or ``max_tokens`` after the cursor, all but the newest ``keep`` become
segments of at most ``segment_tokens``, so that a backlog is caught up in steps. A segment ends before a
question, so that no answer is shown without it. A far too long answer is cut after a sentence; the
conversation repeated is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from agent_core.memory.consolidation.prompts import CONVERSATION_TAG
from agent_core.memory.scopes import private_in
from agent_core.models import HistoryTail, Message
from agent_core.prompt_budget import TokenEstimate, clip
from agent_core.provenance import Origins, join_origins
from agent_core.text import word_count

META_SUMMARY_WORD_LIMIT = 600
META_SUMMARY_SENTENCES = 8
_LEAST_SENTENCES = 5
_MESSAGES_PER_SENTENCE = 10
_SENTENCE_CHARS = 600
_MAX_TURN = 200
_SHINGLE = 8
_COPY_CHARS = 400
_SINGLE = 4
_LEFT_OUT = "(What came before this is left out of the summary; the history still has it.)"
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)]*(?=\s|$)|\n")


@dataclass(frozen=True, slots=True)
class ConsolidationRules:
    """
    The thresholds of consolidation, for the messages after the cursor.

    Args:
        threshold: The most messages.
        max_tokens: The most estimated tokens.
        keep_recent_ratio: The share of them kept verbatim.
        segment_tokens: The most of a conversation per model call.
    """

    threshold: int = 100
    keep_recent_ratio: float = 0.2
    max_tokens: int = 12_000
    segment_tokens: int = 18_000

    def __post_init__(self) -> None:
        if self.threshold < 1 or not 0 < self.keep_recent_ratio < 1:
            raise ValueError(f"cannot consolidate by these rules: {self}")

    @property
    def keep(self) -> int:
        """Return how many of the newest messages stay unconsolidated."""
        return max(1, int(self.threshold * self.keep_recent_ratio))


@dataclass(frozen=True, slots=True)
class Segment:
    """
    The messages to consolidate, at positions ``start`` to ``end`` (exclusive; the next cursor).

    ``private`` and ``origins`` are those of the messages and the summary before them.
    """

    messages: tuple[Message, ...]
    start: int
    end: int
    private: frozenset[str] = frozenset()
    origins: Origins = ()

    @property
    def sentences(self) -> int:
        """Return the most sentences its summary may have."""
        return sentence_budget(len(self.messages))


def sentence_budget(messages: int) -> int:
    """Return the most sentences that a summary of this many messages may have."""
    return max(_LEAST_SENTENCES, messages // _MESSAGES_PER_SENTENCE)


def keep_for(tail: HistoryTail, rules: ConsolidationRules, estimate: TokenEstimate) -> int | None:
    """
    Return how many of the newest messages to keep when consolidating now, or None if it is not due.

    Args:
        tail: The newest messages after the cursor, read up to about ``rules.max_tokens``.
    """
    if tail.unconsolidated > rules.threshold:
        return rules.keep
    costs = [estimate.message(message) for message in tail.messages]
    if tail.complete and sum(costs) <= rules.max_tokens:
        return None
    room = rules.max_tokens * rules.keep_recent_ratio
    kept = 0
    for cost in reversed(costs[-rules.keep :]):
        room -= cost
        if room < 0:
            break
        kept += 1
    return max(1, kept)


def plan(page: HistoryTail, keep: int, rules: ConsolidationRules, estimate: TokenEstimate) -> Segment | None:
    """Return the oldest segment to consolidate, ``keep`` messages stay; None without a clean cut."""
    messages = page.messages
    nominal = bisect_left(page.positions, page.total - keep)
    cut = _cut(messages, nominal, len(messages) - 1)
    used = 0
    single = rules.segment_tokens // _SINGLE
    for number, message in enumerate(messages[:cut]):
        used += min(estimate.message(message), single)
        if used > rules.segment_tokens:
            cut = _cut(messages, number, cut)
            break
    if cut <= 0:
        return None
    private = page.private | private_in(message.scope for message in messages[:cut])
    origins = join_origins(page.origins, *(message.sources for message in messages[:cut]))
    return Segment(messages[:cut], page.cursor, page.positions[cut], private, origins)


def _cut(messages: Sequence[Message], wanted: int, last: int) -> int:
    """The best place to cut near ``wanted`` and not after ``last``; 0 if there is none."""
    wanted = min(wanted, last)
    before, after = range(wanted, 0, -1), range(wanted + 1, last + 1)
    never = range(0)
    for places, good in (
        (before, _between_turns),
        (after, _between_turns),
        (before, _between_answers),
        (before if wanted >= _MAX_TURN else never, _separates_no_answer),
    ):
        for place in places:
            if good(messages[place - 1], messages[place]):
                return place
    return 0


def _between_turns(before: Message, here: Message) -> bool:
    """Return False between two questions that were answered together."""
    return here.role == "user" and (before.role != "user" or here.turn is None or here.turn != before.turn)


def _between_answers(before: Message, here: Message) -> bool:
    """Something is said here without having been asked."""
    return here.role == "assistant" and before.role in ("assistant", "tool") and not before.tool_calls


def _separates_no_answer(before: Message, here: Message) -> bool:
    """Return True if a boundary here separates no question from its answer."""
    return not (before.role == "user" and here.role == "assistant")


# ── texts ──


def conversation_text(messages: Sequence[Message], max_tokens: int, estimate: TokenEstimate) -> str:
    """
    The messages as a model reads them: who, what, and the day in the owner's time zone where it changes;
    empty if there are none.

    No message takes more than a fourth of the room; tool results and empty messages are left out.
    """
    lines: list[str] = []
    day = ""
    for message in messages:
        if message.role not in ("user", "assistant") or not message.content.strip():
            continue
        today = f"{message.timestamp.astimezone():%a %Y-%m-%d}" if message.timestamp else day
        if today != day:
            lines.append(f"({today})")
            day = today
        lines.append(
            f"{message.role.upper()}: {clip(message.content.strip(), max_tokens // _SINGLE, estimate)}"
        )
    return clip("\n".join(lines), max_tokens, estimate)


def day_of(message: Message) -> str:
    """The day of a message in the owner's time zone; empty if nobody knows it."""
    return f"{message.timestamp.astimezone():%Y-%m-%d}" if message.timestamp else ""


def max_answer_chars(sentences: int) -> int:
    """The largest acceptable length of an answer of so many sentences."""
    return sentences * _SENTENCE_CHARS


def accept_summary(answer: str, source: str, sentences: int) -> str | None:
    """The summary in an answer, cut after a sentence if it is far too long; None if it is a mere copy."""
    text = answer.strip()
    limit = max_answer_chars(sentences)
    if text.startswith(f"<{CONVERSATION_TAG}>") or (len(source) > _COPY_CHARS and source in text):
        return None  # the whole request
    long = len(text) > limit or len(text) >= 0.9 * len(source)
    if len(text) > _COPY_CHARS and long and _copied(text, source) > 0.8:
        return None
    if len(text) <= limit:
        return text or None
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, limit)]
    return text[: ends[-1] if ends else limit].strip() or None


def _copied(text: str, source: str) -> float:
    """Return the share (0 to 1) of the text that stands word for word in the source."""
    words, known = text.split(), source.split()
    runs = {tuple(known[at : at + _SHINGLE]) for at in range(len(known))}
    shingles = [tuple(words[at : at + _SHINGLE]) for at in range(0, len(words), _SHINGLE)]
    found = sum(shingle in runs for shingle in shingles)
    if shingles and shingles[-1] not in runs:
        found += " ".join(shingles[-1]) in " ".join(known)  # the last may end inside of a run, or of a word
    return found / len(shingles) if shingles else 0.0


def too_long_to_keep(summary: str, max_tokens: int, estimate: TokenEstimate) -> bool:
    """Return True if a summary must be rewritten: too many words, or more than ``max_tokens``."""
    return word_count(summary) > META_SUMMARY_WORD_LIMIT or estimate.text(summary) > max_tokens


def readable(summary: str, max_chars: int) -> tuple[str, str]:
    """The part of a summary that one call can read, up to the end of a paragraph, and the rest."""
    if len(summary) <= max_chars:
        return summary, ""
    end = summary.rfind("\n\n", 0, max_chars)
    if end <= 0:
        end = max_chars
    return summary[:end], summary[end:].strip()


def newest_of(summary: str, max_chars: int) -> str:
    """Keep a summary's newest sentences within ``max_chars``: without a model nothing else shortens it."""
    if len(summary) <= max_chars:
        return summary
    text = summary.removeprefix(_LEFT_OUT).strip()
    start = max(0, len(text) - max_chars)
    first = _SENTENCE_END.search(text, start)
    if first is not None and first.end() < len(text):
        start = first.end()
    return f"{_LEFT_OUT}\n\n{text[start:].strip()}"
