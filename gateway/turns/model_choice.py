"""
Which model pool answers in a conversation: the one that the owner has chosen there (``!model``), otherwise
that of the purpose. The choice is for what people write; check-ins, jobs and consolidation keep their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_core.llm.factory import Models
from agent_core.messages import SessionKey
from agent_core.models import Purpose, Session
from agent_core.ports import LLMPort
from gateway.store.stores import StateStore


class ModelChoice:
    """Stores the choices; one instance for all sessions."""

    def __init__(self, state: StateStore, models: Models, by_purpose: Callable[[Purpose], LLMPort]) -> None:
        self._state = state
        self._models = models
        self._by_purpose = by_purpose

    @property
    def default(self) -> str:
        """The name of the pool that answers where nobody has chosen one."""
        return self._models.default_pool

    def pools(self) -> Mapping[str, list[str]]:
        """The models of each pool, in the order in which they are asked."""
        return {
            name: [member.name for member in pool.state()]
            for name, pool in sorted(self._models.pools.items())
        }

    async def chosen(self, session: SessionKey) -> str:
        """Return the conversation's chosen pool or ""; it may be unconfigured. Raises `StoreUnavailable`."""
        return await self._state.read(choice_topic(session)) or ""

    async def choose(self, session: SessionKey, pool: str) -> None:
        """Choose a conversation's pool, "" for the default. Raises StoreUnavailable; repeatable."""
        if pool != await self.chosen(session):
            await self._state.write(choice_topic(session), pool)

    def llm(self, session: Session, chosen: str | None) -> LLMPort:
        """The pool that answers a turn; ``chosen`` is stored as the `choice_topic` of its conversation."""
        if session.purpose is Purpose.CHAT:
            pool = self._models.pools.get(chosen or "")
            if pool is not None:
                return pool
        return self._by_purpose(session.purpose)


def choice_topic(session: SessionKey) -> str:
    """The name under which a conversation's choice is stored."""
    return f"model:{session}"
