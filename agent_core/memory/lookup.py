"""
Looks up earlier turns for a question before a model is asked (``memory.lookup``). The question itself is the
search, so no model is asked. What is found stands between the history and the question, so that a provider
that caches prompts from their beginning finds the same beginning again. It never brings new origins into a
turn: passages with words of somebody who has no part in the question are left out, so that no tool call has
to be approved because of a lookup. ``search_history`` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from agent_core.memory_ports import SearchPort, SearchRequest
from agent_core.models import MemoryScope, Message, SearchHit
from agent_core.prompt import Passage, remembered_text, searched_words, without_tags
from agent_core.prompt_budget import TokenEstimate
from agent_core.provenance import Origins, join_origins
from agent_core.text import asks, excerpt, one_line, word_count

SHARE = 16
"""Passages take this part of a prompt at most."""
_MOST = 8
_LEAST = 0.25  # of the best one's worth: others make a prompt long and are rarely what was meant
_HITS = 20  # of which some say the same
_SAME = 0.4  # of their letters three in a row: “tell me more about the cat” in twenty turns is one thing
_CHARS = 140  # of the sentence that was found
_CHARS_WITH_NEIGHBOURS = 100  # of it with those beside it: more of them hide other turns
_WITH_NEIGHBOURS = 3  # passages: further ones are rarely what was meant, and take the room of others
_ANSWER_CHARS = 400  # it has no word of the question, so nobody knows which part was meant
_QUESTION_CHARS = 60
_FEW_WORDS = 4  # “And when was that?” says only together with the question before it what it is about


class QuestionLookup:
    """Finds the passages for a question."""

    def __init__(self, search: SearchPort) -> None:
        self._search = search

    async def passages(
        self,
        question: str,
        session_id: str,
        *,
        scope: MemoryScope,
        shown: Sequence[Message],
        since: datetime | None,
        origins: Origins,
        max_tokens: int,
        estimate: TokenEstimate,
    ) -> Message | None:
        """
        Return the best earlier turns as one message, or None.

        Args:
            question: As it stands in the prompt. A single word finds nothing: it is mostly a greeting. Of a
                few words the question before is looked up as well.
            shown: The history that is in the prompt anyway.
            since: Nothing of what was said before is shown.
            origins: Whose words the question is made of besides the owner's.
        """
        words = searched_words(question)
        if word_count(words) <= 1:
            return None
        least = _LEAST
        if word_count(words) <= _FEW_WORDS:
            words = f"{words} {_question_before(shown)}"
            least /= 2  # the best hit is that question
        known = {(each.kind, each.where) for each in origins}

        def turn_of(hit: SearchHit) -> list[Message]:
            return [line for line in hit.messages if since is None or _is_from(line, since)]

        def pick(hits: Iterator[SearchHit]) -> Iterator[SearchHit]:
            for hit in _repeated_last(islice(hits, _HITS)):
                turn = turn_of(hit)
                sources = join_origins(*(line.sources for line in turn))
                is_known = all((each.kind, each.where) in known for each in sources)
                if turn and is_known and not _is_shown(hit, session_id, shown, words):
                    yield hit

        answer = await self._search.search(
            SearchRequest(
                scope, words, since, least=least, max_results=_MOST, waits=False, neighbours=False, pick=pick
            )
        )
        turns = [turn_of(hit) for hit in answer.hits]
        found = [
            _passage(hit, turn, words, "here" if hit.session_id == session_id else hit.session_id, number)
            for number, (hit, turn) in enumerate(zip(answer.hits, turns, strict=True))
        ]
        while found and estimate.text(text := remembered_text(found)) > max_tokens:
            found.pop()
        if not found:
            return None
        sources = join_origins(*(line.sources for turn in turns[: len(found)] for line in turn))
        # As a message of a person it would count as words in which that person names what a tool may reach.
        return Message(role="system", content=text, origins=sources)


def _question_before(shown: Sequence[Message]) -> str:
    asked = next((each.content for each in reversed(shown) if each.role == "user"), "")
    return one_line(searched_words(asked), 200)


def _repeated_last(hits: Iterable[SearchHit]) -> Iterator[SearchHit]:
    """Yield hits with those last of which the sentence found says mostly what that of a better one says."""
    repeated: list[SearchHit] = []
    seen: dict[str, set[str]] = {}
    for hit in hits:
        said = hit.part(hit.at).lower()
        parts = {said[at : at + 3] for at in range(len(said) - 2)} if said not in seen else seen[said]
        if any(_have_same(parts, other) for other in seen.values()):
            repeated.append(hit)
        else:
            seen[said] = parts
            yield hit
    yield from repeated


def _have_same(one: set[str], other: set[str]) -> bool:
    both = len(one & other)
    return both > _SAME * (len(one) + len(other) - both)


def _passage(hit: SearchHit, turn: Sequence[Message], words: str, place: str, number: int) -> Passage:
    """
    Return the sentence found in a turn, with its question or answer if found; its answer also to one.

    Of the first ones is shown also what stands beside a sentence, if it fits with it into some characters.
    """
    beside = _CHARS_WITH_NEIGHBOURS if number < _WITH_NEIGHBOURS else 0
    line = hit.messages[hit.at]
    numbers = {id(one): number for number, one in enumerate(hit.messages)}
    said = []
    for one in turn:
        part = hit.part(numbers[id(one)])
        if part or one is line or (one.role == "assistant" and asks(hit.part(hit.at))):
            most = min(_CHARS, max(beside, len(part) + 4)) if part else _ANSWER_CHARS
            most = most if one is line or one.role == "assistant" else _QUESTION_CHARS
            said.append((_who(one), excerpt(without_tags(one.content), words, most, part)))
    return f"{_day(turn[0])}, {place}", said


def _is_from(line: Message, since: datetime) -> bool:
    return line.timestamp is not None and line.timestamp >= since


def _is_shown(hit: SearchHit, session_id: str, shown: Sequence[Message], words: str) -> bool:
    """Return True if the prompt has what was found already, or what was said before it there."""
    if hit.session_id != session_id or not shown:
        return not _says_more(hit.messages[hit.at].content, words, shown)
    line, first = hit.messages[hit.at], shown[0].timestamp
    later = first is not None and line.timestamp is not None and line.timestamp >= first
    return later or any(line.content == each.content for each in shown)


def _says_more(text: str, words: str, shown: Sequence[Message]) -> bool:
    """Return False if a text has words of a question only in its thread's start, which is shown."""
    if "<thread_start>" not in text:
        return True
    known = {line for each in shown for line in each.content.splitlines()}
    lines = text.splitlines()
    more = [line for line in lines if line not in known and line.partition("] ")[2] not in known]
    told = "\n".join(more).lower()
    return len(more) == len(lines) or any(word in told for word in words.lower().split() if len(word) > 2)


def _day(line: Message) -> str:
    if line.timestamp is None:
        return "Earlier"
    at = line.timestamp.astimezone()  # as the days of the history are
    return f"On {at.day} {at:%B %Y}"


def _who(line: Message) -> str:
    return "you" if line.role == "assistant" else line.sender or "user"
