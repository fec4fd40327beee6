"""
``!new``: a conversation is reset at once, or behind what was asked before and still waits for its answer. The
command overtakes waiting turns, but earlier questions belong to the old conversation. So its number is kept,
and the first later message's turn resets: all earlier ones have ended by then, except one waiting for an
approval. Until then messages are answered one by one, since those before and after could be merged.
"""

from __future__ import annotations

import json

import anyio
import structlog

from agent_core.messages import SessionKey
from gateway.routing.access import normalise
from gateway.store.shared import SHARED
from gateway.store.states import InboxState
from gateway.store.stores import InboxRow, Queue, Turn
from gateway.turns.commands.conversation_commands import Histories

_STATE = "conversations.anew_after"
_log = structlog.get_logger(__name__)


class NewConversation:
    """Resets conversations; ``store`` has the numbers of waiting ``!new``."""

    def __init__(self, store: Queue, histories: Histories) -> None:
        self._store = store
        self._histories = histories
        self._after: dict[str, int] | None = None
        """What was kept."""
        self._lock = anyio.Lock()

    async def has_one_author(self, turn: Turn) -> bool:
        """Return True if only the sender wrote what a reset sets aside. Raises StoreUnavailable."""
        if turn.session == SHARED:
            return True
        tail = await self._histories.tail(turn.session)
        said = [line.sender for line in tail.messages if line.role == "user"]
        said += [row.message.sender.address for row in await self._open(turn.session)]
        me = normalise(turn.head.message.sender.address)
        # Whose words are in a summary, nobody can tell.
        summary = tail.summary or await self._histories.memory.load_session_summary(str(turn.session))
        return not summary and all(sender is not None and normalise(sender) == me for sender in said)

    async def request_reset(self, turn: Turn) -> int:
        """Take a ``!new``, repeatable; return the number of messages until the reset, 0 for at once."""
        number = turn.head.id
        rows = await self._open(turn.session)
        before = sum(row.id < number and row.message.kind in ("message", "job") for row in rows)
        if before:
            await self._put(turn.session, number)
            return before
        await self._set_aside(turn.session)
        await self._put(turn.session, None)
        return 0

    async def is_pending(self, session: SessionKey) -> bool:
        """Return True if a conversation is reset at a later message. Raises `StoreUnavailable`."""
        return str(session) in await self._known()

    async def begin(self, turn: Turn) -> None:
        """Reset for a waiting ``!new``. Raises `StoreUnavailable` or `StorageUnavailable`."""
        after = (await self._known()).get(str(turn.session))
        if after is None or turn.head.id < after:
            return
        await self._set_aside(turn.session)
        await self._put(turn.session, None, instead_of=after)
        _log.info("conversation.reset", channel=turn.channel)

    async def _set_aside(self, session: SessionKey) -> None:
        # As `sessions reset`, but for what waits: that was written after this command, and belongs to what
        # begins now. A turn may have been answered just now, so its lines need not be in the file yet.
        tail = await self._histories.tail(session, max_messages=1)
        await self._histories.memory.save_consolidation(str(session), summary="", cursor=tail.total)

    async def _open(self, session: SessionKey) -> list[InboxRow]:
        open_now = [InboxState.READY, InboxState.RUNNING]
        return await self._store.inbox.rows(states=open_now, session=session, limit=5000)

    async def _known(self) -> dict[str, int]:
        if self._after is None:
            self._after = _read(await self._store.state.read(_STATE))
        return self._after

    async def _put(self, session: SessionKey, number: int | None, *, instead_of: int | None = None) -> None:
        """Keep a number, or forget one; with ``instead_of`` only if it is that one still."""
        async with self._lock:
            kept = (await self._known()).get(str(session))
            if kept == number or (instead_of is not None and kept != instead_of):
                return
            while True:
                text = await self._store.state.read(_STATE)
                changed = {name: after for name, after in _read(text).items() if name != str(session)}
                if number is not None:
                    changed[str(session)] = number
                if await self._store.state.swap(_STATE, text, json.dumps(changed)):
                    break  # else another process has kept one of its own meanwhile
            self._after = changed


def _read(text: str | None) -> dict[str, int]:
    """Parse the stored resets; an unreadable text counts as none."""
    try:
        return {str(name): int(after) for name, after in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}
