"""
The memory of conversations, as an agent uses it: prompts (`PromptBuilder`), stored exchanges, and the
consolidation of what grows too long (`Consolidation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agent_core import prompt
from agent_core.memory.prompt_builder import PromptBuilder
from agent_core.memory.scopes import hidden_from
from agent_core.models import MemoryScope, Message


class MemoryManager(PromptBuilder):
    """Builds prompts from memory and history, stores exchanges, and consolidates what grows too long."""

    async def last_scope(self, session_id: str) -> str | None:
        """The scope of the last turn of a session; None: it has none, or there was none."""
        last = await self._last(session_id)
        return last[-1].scope if last else None

    async def _last(self, session_id: str) -> Sequence[Message]:
        newest = await self._storage.load_history(session_id, max_messages=1)
        if not newest.messages and newest.total:  # it began anew after its last turn
            newest = await self._storage.load_segment(session_id, start=newest.total - 1, max_messages=1)
        return newest.messages

    async def preview(self, session_id: str) -> dict[str, Any]:
        """Estimate the parts of a session's next prompt, for people, without question and tools."""
        guess = self.estimate
        last = await self._last(session_id)
        tail = await self._storage.load_history(session_id, max_chars=guess.chars(self.context_tokens))
        told = last[-1].scope if last else None
        document = await self.remembered.document_for(last)
        summary = "" if hidden_from(told, tail.private) else tail.summary or ""
        built = await self._assembled(
            session_id,
            prompt.BASE_PROMPT,
            Message(role="user", content="", scope=told),
            document,
            (),
            self.context_tokens,
        )
        history = built[1:-1]
        parts = {
            "base": guess.text(prompt.BASE_PROMPT),
            "memory": min(guess.text(document.text), self.context_tokens // 4),
            "summary": min(guess.text(summary), self._summary_tokens),
            "skills": sum(guess.text(text) for text in self._skill_texts((), self.context_tokens // 8)),
            "history": sum(guess.message(message) for message in history),
        }
        return {
            "scope": told,
            "cursor": tail.cursor,
            "messages": len(history),
            "left_out": tail.unconsolidated - len(history),
            "tokens": parts,
            "total_tokens": guess.request(built),
            "limit_tokens": self.context_tokens,
            "consolidated_above": {"messages": self._rules.threshold, "tokens": self._rules.max_tokens},
        }

    async def persist_exchange(
        self,
        session_id: str,
        user_message: str,
        assistant_reply: str,
        *,
        turn: str = "",
        sender: str | None = None,
        at: datetime | None = None,
        scope: MemoryScope | None = None,
    ) -> None:
        """
        Store a question and its answer.

        With ``turn`` the two lines have the ids ``turn.0`` and ``turn.1``: keeping them again does nothing.
        With ``scope`` they can be found again by whoever that is.
        """
        ids: Sequence[str | None] = (f"{turn}.0", f"{turn}.1") if turn else (None, None)
        shared = {"turn": turn or None, "scope": None if scope is None else str(scope)}
        asked = Message(role="user", content=user_message, id=ids[0], sender=sender, timestamp=at)
        answered = Message(role="assistant", content=assistant_reply, id=ids[1])
        await self._storage.append_message(
            session_id, *(each.model_copy(update=shared) for each in (asked, answered))
        )
