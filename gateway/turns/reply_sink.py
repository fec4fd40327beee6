"""What a turn sees of its channel: a place for the answer, typing and previews."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import structlog

from agent_core.messages import SessionKey
from channels.base import Channel
from gateway.errors import NeedsAccount

_TYPING_EVERY_S = 20.0
_PREVIEW_EVERY_S = 0.05
_HINT_LIMIT_S = 10.0
_log = structlog.get_logger(__name__)


class ReplySink:
    """
    Implements `agent_core.ports.ChannelPort` for one turn.

    The answer is kept, not sent: it leaves through the outbox after the turn is committed. Typing and
    previews are best effort: each has a time limit, and the turn never waits for them. Without ``previews``
    nobody sees the answer before it is sent; with ``quiet`` nobody sees that there is work, either.
    """

    def __init__(
        self, channel: Channel, session: SessionKey, *, previews: bool = True, quiet: bool = False
    ) -> None:
        self._channel = channel
        self._previews = previews and not quiet and channel.capabilities.previews
        self._typing = not quiet and channel.capabilities.typing
        self._session = session
        self._preview: str | None = None
        self._news = anyio.Event()
        self.answer: str | None = None

    async def send(self, text: str) -> None:
        """Keep the answer."""
        self.answer = text

    async def partial(self, text: str) -> None:
        """Show the text so far, the newest at the most a few times a second."""
        if self._previews:
            self._preview = text
            self._news.set()

    async def activity(self, what: str) -> None:
        """Nothing to show yet beyond typing."""

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """While inside, the conversation is shown that work goes on."""
        if not (self._typing or self._previews):
            yield
            return
        failed: BaseException | None = None
        async with anyio.create_task_group() as hints:
            if self._typing:
                hints.start_soon(self._keep_typing)
            if self._previews:
                hints.start_soon(self._keep_showing)
            try:
                yield
            except (Exception, NeedsAccount) as error:  # noqa: BLE001 - raised again below, outside of the group
                # Kept outside of the group: what the turn raises must not arrive wrapped in a group.
                failed = error
            hints.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def hide(self) -> None:
        """Nothing goes on any more. Called after the turn is committed, so that no answer waits for it."""
        if self._typing:
            await self._attempt(lambda: self._channel.typing(self._session, on=False))

    async def _attempt(self, give: Callable[[], Awaitable[None]]) -> None:
        try:
            with anyio.move_on_after(_HINT_LIMIT_S):
                await give()
        except Exception as error:  # noqa: BLE001 - a hint never costs an answer
            _log.info("typing.failed", channel=self._channel.name, error=type(error).__name__)

    async def _keep_typing(self) -> None:
        while True:
            await self._attempt(lambda: self._channel.typing(self._session, on=True))
            await anyio.sleep(_TYPING_EVERY_S)

    async def _keep_showing(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            await self._attempt(partial(self._channel.preview, self._session, self._preview or ""))
            await anyio.sleep(_PREVIEW_EVERY_S)
