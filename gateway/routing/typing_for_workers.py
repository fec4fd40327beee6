"""Shows that a worker is at work on a conversation of an account that this process has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import structlog

from agent_core.messages import SessionKey
from channels.base import Channel

_LIMIT_S = 10.0
_MOST = 100
_log = structlog.get_logger(__name__)


class TypingForWorkers:
    """
    Passes on the typing hints of workers; each may get lost, and nobody waits for one.

    Args:
        channels: All channels by name.
        is_ours: Whether this process has the account of a channel.
    """

    def __init__(self, channels: Mapping[str, Channel], is_ours: Callable[[str], bool]) -> None:
        self._channels = channels
        self._is_ours = is_ours
        self._wanted: dict[SessionKey, bool] = {}
        self._news = anyio.Event()

    def show(self, session: SessionKey, on: bool) -> None:  # noqa: FBT001 - as channels have it
        """
        Show that work continues there, or has ended. Returns at once; the newest hint of a conversation
        counts.
        """
        channel = self._channels.get(session.channel)
        if channel is None or not channel.capabilities.typing or not self._is_ours(session.channel):
            return
        if session in self._wanted or len(self._wanted) < _MOST:
            self._wanted[session] = on
            self._news.set()

    async def run(self) -> None:
        """Show until cancelled. Raises nothing but cancellation."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            wanted, self._wanted = self._wanted, {}
            async with anyio.create_task_group() as hints:
                for session, on in wanted.items():
                    hints.start_soon(self._show, session, on)

    async def _show(self, session: SessionKey, on: bool) -> None:  # noqa: FBT001 - as above
        try:
            with anyio.move_on_after(_LIMIT_S):
                await self._channels[session.channel].typing(session, on=on)
        except Exception as error:  # noqa: BLE001 - a hint never costs anything
            _log.info("typing.failed", channel=session.channel, error=type(error).__name__)
