"""
Puts prompts together from memory and history, with the texts of `agent_core.prompt`. A prompt holds the
system text with memory document, summary and skills, then the history after the cursor, then the message,
within ``context_tokens`` by our estimate: the message at most half, the document a quarter, summary, skills
and single old messages an eighth or a quarter, the newest history the rest. What was said in private is left
out while others can read (`scopes`). Nothing here writes to the disk or calls a model while a person waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

import structlog

from agent_core import prompt
from agent_core.bounded import Bounded
from agent_core.errors import SkillInvalid
from agent_core.memory.consolidation.consolidation_policy import ConsolidationRules
from agent_core.memory.consolidation.consolidation_run import Consolidation
from agent_core.memory.lookup import SHARE, QuestionLookup
from agent_core.memory.scopes import OWNER, hidden_from, private_in
from agent_core.memory_ports import MemoryPort, SearchPort
from agent_core.messages import Attachment
from agent_core.models import HistoryTail, MemoryDocument, MemoryScope, Message, in_force
from agent_core.ports import LLMPort, SkillsPort
from agent_core.prompt_budget import (
    PICTURE_TOKENS,
    PromptWindow,
    TokenEstimate,
    clip,
    fit_window,
    is_picture,
    valid_history,
    with_newest_pictures,
)
from agent_core.provenance import Origins, arriving, join_origins

DEFAULT_CONTEXT_TOKENS = 24_000
DEFAULT_CONSOLIDATION_TOKENS = 12_000
_MEMORY_TOOL = "memory_write"
_SKILL_TOOL = "read_skill"
_SUMMARY_SHARE = 8
_WARN_BEFORE = 2

log = structlog.get_logger(__name__)


class PromptBuilder(Consolidation):
    """
    Builds the prompt of each turn, see `build_messages`, with as much history as fits.

    Args:
        search: Finds earlier turns for each question (`lookup`); None: no search.
        llm: Consolidates; None: nothing is, and nothing is announced.
        consolidation_threshold: The most messages after the cursor.
        keep_recent_ratio: The share kept verbatim in a consolidation.
        consolidation_tokens: The most tokens after the cursor.
        window: Returns the model's window; a prompt, without tool definitions and answer, takes three
            quarters of it at most.
        always_skills: Skills whose bodies are in every prompt.
        estimate: Counts tokens for the model.
        pictures: The most pictures of a question, a third of it for history; 0: the model sees none.
    """

    def __init__(
        self,
        storage: MemoryPort,
        *,
        skills: SkillsPort | None = None,
        search: SearchPort | None = None,
        llm: LLMPort | None = None,
        consolidation_threshold: int = 100,
        keep_recent_ratio: float = 0.2,
        consolidation_tokens: int = DEFAULT_CONSOLIDATION_TOKENS,
        window: Callable[[], int] | None = None,
        always_skills: Collection[str] = (),
        estimate: Callable[[], TokenEstimate] = TokenEstimate,
        pictures: int = 0,
        on_unusable: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._window = window
        self._wanted = ConsolidationRules(consolidation_threshold, keep_recent_ratio, consolidation_tokens)
        super().__init__(storage, llm, estimate=estimate, on_unusable=on_unusable)
        self._skills = skills
        self._lookup = None if search is None else QuestionLookup(search)
        self._always_skills = frozenset(always_skills)
        self._pictures = pictures
        self._shown: Bounded[str, int] = Bounded(4096)

    @property
    def context_tokens(self) -> int:
        """Return the most tokens that a prompt may have at present."""
        most = DEFAULT_CONTEXT_TOKENS
        return most if self._window is None else min(most, self._window() * 3 // 4)

    @property
    def _rules(self) -> ConsolidationRules:
        limit = self.context_tokens
        # Consolidated must be before the ceiling hides anything.
        most = min(self._wanted.max_tokens, limit // 2)
        return replace(self._wanted, max_tokens=most, segment_tokens=limit * 3 // 4)

    @property
    def _summary_tokens(self) -> int:
        return self.context_tokens // _SUMMARY_SHARE

    def shown_version(self, session_id: str) -> int | None:
        """The version of the memory document in the last prompt of this session; None if there was none."""
        return self._shown.get(session_id)

    async def build_messages(
        self,
        session_id: str,
        system_prompt: str,
        user_message: str,
        *,
        scope: MemoryScope = OWNER,
        tool_names: Collection[str] = (),
        context_tokens: int | None = None,
        attachments: Sequence[Attachment] = (),
        since: datetime | None = None,
        origins: Origins = (),
        lookup: bool = True,
    ) -> list[Message]:
        """
        Build the prompt of one turn: system text, history, found passages, question.

        Args:
            user_message: The words after the turn's facts (`prompt.turn_facts`), in rooms with their authors.
            scope: The scope of the memory document, from `scope_for`.
            tool_names: The tools of this run; no others are mentioned.
            context_tokens: A smaller limit than usual, as after a "too long".
            since: Nothing said before is shown.
            origins: The question's origins except the owner; passages of others are left out.
            lookup: False for a check-in, which has no question.
        """
        limit = self.context_tokens if context_tokens is None else context_tokens
        document = await self.remembered.document(scope)
        self._shown[session_id] = document.version
        question = Message(
            role="user",
            content=clip(user_message, limit // 2, self.estimate),
            attachments=self._shown_pictures(attachments, limit),
            scope=str(scope),
        )
        looks_up = self._lookup if lookup else None
        share = 0 if looks_up is None else limit // SHARE
        rest = limit - share
        built = await self._assembled(session_id, system_prompt, question, document, tool_names, rest, since)
        if looks_up is None:
            return built
        found = await looks_up.passages(
            question.content,
            session_id,
            scope=scope,
            shown=built[1:-1],
            since=since,
            origins=origins,
            max_tokens=share,
            estimate=self.estimate,
        )
        return built if found is None else [*built[:-1], found, built[-1]]

    async def _assembled(  # noqa: PLR0917 - what `build_messages` has worked out
        self,
        session_id: str,
        system_prompt: str,
        question: Message,
        document: MemoryDocument,
        tool_names: Collection[str],
        limit: int,
        since: datetime | None = None,
    ) -> list[Message]:
        guess = self.estimate
        tail = await self._storage.load_history(session_id, max_chars=guess.chars(limit))
        seen = _seen_by(question.scope, tail, since)
        question = _dated_question(question, seen.messages)
        # Summary and history must be of one moment: consolidation goes on while prompts are built.
        summary = tail.summary
        if summary is None:
            summary = await self._storage.load_session_summary(session_id)
        is_hidden = hidden_from(question.scope, tail.private)
        if is_hidden or (summary and not await self._began(session_id, since)):
            summary = ""

        warning = [prompt.consolidation_warning()] if self._warns(tail, tool_names) else []

        def system(*notes: str) -> Message:
            text = prompt.system_text(
                system_prompt,
                memory=clip(document.text, limit // 4, guess),
                summary=clip(summary, limit // _SUMMARY_SHARE, guess),
                skills=skills,
                notes=[*warning, *notes],
            )
            # A document may have been written elsewhere: what was called fine here says nothing about it.
            sources = join_origins(arriving(document.origins), tail.origins if summary else ())
            return Message(role="system", content=text, origins=sources)

        skills = self._skill_texts(tool_names, limit // 8)
        room = limit - guess.message(system(prompt.CUT_NOTE)) - guess.message(question)
        scope_name = question.scope or ""
        window = self._fitting(seen, room, limit // 4, scope_name)
        if not window.messages and not tail.complete:  # the newest message alone filled what was read
            tail = await self._storage.load_history(session_id, max_messages=4)
            window = self._fitting(_seen_by(question.scope, tail, since), room, limit // 8, scope_name)
        notes = [] if tail.complete and window.left_out == 0 else [prompt.CUT_NOTE]
        return [system(*notes), *window.messages, question]

    async def _began(self, session_id: str, since: datetime | None) -> bool:
        """Return True if nothing was said before ``since``; the summary then holds nothing older."""
        if since is None:
            return True
        beginning = await self._storage.load_segment(session_id, start=0, max_messages=1)
        return all(_is_since(message, since) for message in beginning.messages)

    def _warns(self, tail: HistoryTail, tool_names: Collection[str]) -> bool:
        """Return True if consolidation is near and the model can still save notes with the memory tool."""
        near = tail.unconsolidated >= max(1, self._rules.threshold - _WARN_BEFORE)
        return near and self._llm is not None and _MEMORY_TOOL in tool_names

    def _shown_pictures(self, attachments: Sequence[Attachment], limit: int) -> tuple[Attachment, ...]:
        """The first pictures of a question, as many as are wanted and fit into a quarter of the prompt."""
        most = min(self._pictures, limit // 4 // PICTURE_TOKENS)
        return tuple(file for file in attachments if is_picture(file))[:most]

    def _fitting(self, tail: HistoryTail, room: int, single: int, scope: str) -> PromptWindow:
        """Return the part of the history that fits into ``room`` tokens, each message cut to ``single``."""
        sound = with_newest_pictures(valid_history(tail.messages), self._pictures // 3, scope)
        short = self.estimate.safe_chars(single)
        history = [
            each if len(each.content) <= short else _clipped(each, single, self.estimate) for each in sound
        ]
        window = fit_window(_dated(history), max(0, room), self.estimate)
        if tail.complete or window.left_out:
            return window
        # The storage has cut already, without knowing questions from answers.
        start = next((i for i, each in enumerate(window.messages) if each.role == "user"), len(history))
        return PromptWindow(window.messages[start:], left_out=start)

    def _skill_texts(self, tool_names: Collection[str], max_tokens: int) -> list[str]:
        """The index of skills and the bodies that are always there, as far as they fit."""
        if self._skills is None:
            return []
        listed = self._skills.list_skills()
        texts = [prompt.build_skills_xml(listed, with_reader=_SKILL_TOOL in tool_names)]
        used = self.estimate.text(texts[0])
        for skill in listed:
            if not skill.available or not (skill.always or skill.name in self._always_skills):
                continue
            try:
                body = self._skills.load_skill_body(skill.name)
            except SkillInvalid as exc:
                log.warning("skill.skipped", skill=skill.name, reason=str(exc))
                continue
            text = f"## Skill: {skill.name}\n\n{prompt.fence('skill_text', body)}"
            used += self.estimate.text(text)
            if used > max_tokens:
                log.warning("skill.left_out", skill=skill.name, max_tokens=max_tokens)
                break
            texts.append(text)
        return texts


def _is_since(message: Message, since: datetime | None) -> bool:
    return since is None or (message.timestamp is not None and message.timestamp >= since)


def _seen_by(scope: str | None, tail: HistoryTail, since: datetime | None) -> HistoryTail:
    """Remove from a history what was withdrawn, older than ``since``, or private to others."""
    kept = in_force(tail.messages)
    if kept is not tail.messages:
        tail = replace(tail, messages=tuple(kept))
    if since is not None:
        tail = replace(tail, messages=tuple(each for each in tail.messages if _is_since(each, since)))
    hidden = {
        said for said in {each.scope for each in tail.messages} if hidden_from(scope, private_in([said]))
    }
    if not hidden:
        return tail
    return replace(tail, messages=tuple(each for each in tail.messages if each.scope not in hidden))


def _dated(messages: Sequence[Message]) -> list[Message]:
    """
    Insert day lines before questions of a new day, and questions of ours before what came by itself.

    Stable, so that provider caches stay valid; a provider joins two answers in a row to one.
    """
    dated: list[Message] = []
    last = None
    for message in messages:
        if message.role == "user" and message.timestamp is not None:
            day = message.timestamp.astimezone().date()
            if last is not None and day != last:
                content = f"{prompt.day_mark(day, last)}\n{message.content}"
                dated.append(message.model_copy(update={"content": content}))
            else:
                dated.append(message)
            last = day
        else:
            before = dated[-1] if dated else None
            both = before is not None and before.role == message.role == "assistant"
            is_same = before is not None and message.turn is not None and before.turn == message.turn
            if both and not is_same and message.timestamp is not None:
                mark = prompt.unprompted_line(message.timestamp.astimezone())
                dated.append(Message(role="user", content=mark, timestamp=message.timestamp, origins=()))
            dated.append(message)
    return dated


def _dated_question(question: Message, history: Sequence[Message]) -> Message:
    """The question with a line of days before it if its facts name another day than the one before has."""
    day = prompt.day_of_facts(question.content)
    times = (each.timestamp for each in reversed(history) if each.role == "user" and each.timestamp)
    last = next((at.astimezone().date() for at in times), None)
    if day is None or last is None or day == last:
        return question
    return question.model_copy(update={"content": f"{prompt.day_mark(day, last)}\n{question.content}"})


def _clipped(message: Message, max_tokens: int, estimate: TokenEstimate) -> Message:
    """The message itself, or a copy with a shorter text: copying a whole prompt took longer than the rest."""
    content = clip(message.content, max_tokens, estimate)
    return message if content is message.content else message.model_copy(update={"content": content})
