"""
An account that another process has, as a worker sees it: what the channel can do is known, and it cannot be
asked.

Whatever only the live client knows (who reads along, who may speak, what a room is called) is never answered
from memory: an answer could be older than somebody's joining. So each such question ends the worker's part of
the turn (`gateway.errors.NeedsAccount`). Typing is passed on as a hint; previews and reactions are left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import NoReturn

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import Capabilities, Inbox, Receipt
from gateway.errors import NeedsAccount


class AccountElsewhere:
    """
    Implements `channels.base.Channel` and all that channels may do besides, in the place of a configured one.

    Args:
        typing: Has whoever has the account show or hide that work goes on there; None: that is left out.
    """

    def __init__(
        self,
        name: str,
        account: str,
        capabilities: Capabilities,
        typing: Callable[[SessionKey, bool], object] | None = None,
    ) -> None:
        self.name = name
        self.account = account
        self.capabilities = replace(
            capabilities,
            previews=False,
            acknowledgements=False,
            typing=capabilities.typing and typing is not None,
        )
        self._typing = typing

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Pass the hint on; it may get lost."""
        if self._typing is not None:
            self._typing(session, on)

    async def preview(self, session: SessionKey, text: str) -> None:
        """Do nothing: the text is too long and too private for a notification."""

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""

    async def run(self, inbox: Inbox) -> NoReturn:
        """Raise `NeedsAccount`, as everything below does."""
        self._needs()

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Only the client sends."""
        self._needs()

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Only the client can look."""
        self._needs()

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """Only the client knows."""
        self._needs()

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """Only the client knows."""
        self._needs()

    async def is_in(self, session: SessionKey) -> bool:
        """Only the client knows."""
        self._needs()

    def allowed_here(self, session: SessionKey, person: str) -> bool | None:
        """Only the client knows."""
        self._needs()

    def name_giver(self, conversation: str) -> str:
        """Only the client knows."""
        self._needs()

    def member_names(self, conversation: str) -> Mapping[str, str]:
        """Only the client knows."""
        self._needs()

    def room_name(self, conversation: str) -> str:
        """Only the client knows."""
        self._needs()

    async def people(self, conversation: str) -> Mapping[str, str]:
        """Only the client knows."""
        self._needs()

    def _needs(self) -> NoReturn:
        raise NeedsAccount(f"the account of {self.name}")
