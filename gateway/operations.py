"""
What a person can ask of a gateway: looking at messages, sessions and memory, and putting them right.

One set of operations for both ways in: through the control socket of a running daemon, and directly on the
home folder when none runs. They take and return what JSON can hold. `OPERATIONS` names all that may be
called from outside; arguments are checked against the signatures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from difflib import unified_diff
from typing import Any, Protocol

from pydantic import ValidationError, validate_call

from agent_core.memory.scopes import OWNER
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Usage
from agent_core.ports import MemoryPort
from gateway.errors import GatewayError, NotFound
from gateway.operations_view import inbox_row, message_line, outbox_row, trouble
from gateway.version import version_of
from gateway.work.port import WorkStore
from gateway.work.states import InboxState, OutboxState

__all__ = ["OPERATIONS", "Operations", "RequestInvalid", "SessionCare", "parse_scope", "show_scope"]

_PAGE = 200
_MOST = 1000


class RequestInvalid(GatewayError):
    """This cannot be asked in this way."""

    exit_code = 2


class SessionCare(Protocol):
    """What is known of sessions beside their files; `gateway.upkeep` has both of its kinds."""

    async def about(self, session: SessionKey) -> Mapping[str, Any]:
        """What the next prompt would hold (``prompt``), and what keeps the rest from being condensed."""
        ...

    async def reindex(self) -> Mapping[str, Any]:
        """Make the search index anew."""
        ...


class Operations:
    """
    Answers a person's questions.

    Args:
        store: The durable queue.
        memory: Histories, summaries and memory documents.
        status: The report of the running daemon; None outside of one.
        wake: Told of sessions that have something to do again.
        wake_sending: Told that something may be to be sent again.
        upkeep: Knows prompts and the search index.
    """

    def __init__(
        self,
        store: WorkStore,
        memory: MemoryPort,
        *,
        status: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
        wake: Callable[[SessionKey], None] = lambda _session: None,
        wake_sending: Callable[[], None] = lambda: None,
        upkeep: SessionCare | None = None,
    ) -> None:
        self._store = store
        self._memory = memory
        self._report = status
        self._wake = wake
        self._wake_sending = wake_sending
        self._upkeep = upkeep

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """
        Call an operation by its name.

        Raises:
            RequestInvalid: There is no such operation, or the arguments do not fit.
            NotFound: There is nothing by that name.
        """
        if name not in OPERATIONS:
            raise RequestInvalid(f"there is no operation {name!r}")
        operation: Callable[..., Awaitable[dict[str, Any]]] = validate_call(getattr(self, name))
        try:
            return await operation(**arguments)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise RequestInvalid(f"{name}: {said}") from error

    # ── everything at a glance ──

    async def status(self, reasons: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - called by name
        """
        The daemon, its channels, the queue, and what is stuck. No texts, no people.

        With ``reasons`` also why it is stuck, and what is tried again and why; that may name people.
        """
        report = await (self._report() if self._report is not None else self._without_daemon())
        report = {**report, "running": self._report is not None, "stuck": await self._stuck(reasons=reasons)}
        return {**report, "trying": await self._trying()} if reasons else report

    async def _without_daemon(self) -> dict[str, Any]:
        stats = await self._store.stats()
        return {
            "version": version_of("squidbot-gateway"),
            "ready": False,
            "channels": {},
            "work": {
                "inbox": dict(stats.inbox),
                "outbox": dict(stats.outbox),
                "oldest_unanswered_s": stats.oldest_unanswered_s,
                "oldest_unsent_s": stats.oldest_unsent_s,
                "history_lines_to_file": stats.journal_lines,
            },
        }

    async def _stuck(self, *, reasons: bool) -> list[dict[str, Any]]:
        dead = await self._store.inbox(states=[InboxState.DEAD], limit=10)
        unsent = await self._store.outbox(states=[OutboxState.DEAD, OutboxState.UNKNOWN], limit=10)
        found = [trouble("not answered", row.id, row) for row in dead]
        for row in unsent:
            what = "not sent" if row.state is OutboxState.DEAD else "perhaps not sent"
            found.append(trouble(what, row.inbox_id, row))
        return found if reasons else [{**one, "why": None} for one in found]

    async def _trying(self) -> list[dict[str, Any]]:
        unanswered = await self._store.inbox(states=[InboxState.READY], limit=10)
        unsent = await self._store.outbox(states=[OutboxState.PENDING, OutboxState.UNCERTAIN], limit=10)
        found = [trouble("not answered yet", row.id, row) for row in unanswered if row.error]
        return found + [trouble("not sent yet", row.inbox_id, row) for row in unsent if row.error]

    # ── messages ──

    async def inbox_list(
        self, states: list[str] | None = None, session: str | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """Accepted messages, newest first. Without states: all but those that were ignored."""
        rows = await self._store.inbox(
            states=[_inbox_state(state) for state in states or ()],
            session=None if session is None else _session(session),
            limit=_within(limit),
        )
        return {"rows": [inbox_row(row, preview=80) for row in rows]}

    async def inbox_show(self, id: int) -> dict[str, Any]:  # noqa: A002 - the word that people type
        """One message, and what was or will be sent for it."""
        found = await self._store.inbox_row(id)
        if found is None:
            raise NotFound(f"there is no message {id}; `squidbot inbox list` shows them")
        row, outbound = found
        return {"row": inbox_row(row), "outbound": [outbox_row(sent) for sent in outbound]}

    async def inbox_retry(self, id: int) -> dict[str, Any]:  # noqa: A002
        """Try a message that failed once more, from the beginning."""
        await self.inbox_show(id)
        session = await self._store.requeue(id)
        if session is not None:
            self._wake(session)
            self._wake_sending()
        return {"id": id, "changed": session is not None}

    async def inbox_drop(self, id: int) -> dict[str, Any]:  # noqa: A002
        """Give a message up: it is not answered, and what was to be sent for it is not sent."""
        await self.inbox_show(id)
        return {"id": id, "changed": await self._store.drop(id)}

    # ── sessions ──

    async def sessions_list(self, limit: int = 200) -> dict[str, Any]:
        """Conversations with a history, the one spoken in last first."""
        found = []
        for name in await self._memory.sessions():
            tail = await self._memory.load_history(name, max_messages=1)
            last = tail.messages[-1].timestamp if tail.messages else None
            found.append(
                {
                    "session": name,
                    "messages": tail.total,
                    "unconsolidated": tail.unconsolidated,
                    "damaged_lines": tail.skipped_lines,
                    "last_at": last.isoformat() if last else None,
                }
            )
        found.sort(key=lambda one: (str(one["last_at"] or ""), str(one["session"])), reverse=True)
        return {"sessions": found[: _within(limit)], "total": len(found)}

    async def sessions_show(self, session: str, limit: int = 20) -> dict[str, Any]:
        """The newest messages of a conversation, its summary, what its next prompt would hold, what waits."""
        key = _session(session)
        await self._known(key)
        about = await self._upkeep.about(key) if self._upkeep is not None else {}
        tail = await self._memory.load_history(str(key), max_messages=_within(limit))
        waiting = await self._store.inbox(
            states=[InboxState.READY, InboxState.RUNNING], session=key, limit=50
        )
        return {
            "session": str(key),
            "messages": tail.total,
            "unconsolidated": tail.unconsolidated,
            "cursor": tail.cursor,
            "scope": tail.messages[-1].scope if tail.messages else None,
            **about,
            "summary": await self._memory.load_session_summary(str(key)),
            "newest": [message_line(message) for message in tail.messages],
            "waiting": [inbox_row(row, preview=80) for row in waiting],
        }

    async def sessions_page(self, session: str, start: int = 0, limit: int = _PAGE) -> dict[str, Any]:
        """A piece of a whole conversation, oldest first; ``next`` is where the next piece starts, or None."""
        key = _session(session)
        await self._known(key)
        page = await self._memory.load_segment(str(key), start=max(0, start), max_messages=_within(limit))
        following = page.positions[-1] + 1 if page.positions else None
        return {
            "session": str(key),
            "messages": [message_line(message) for message in page.messages],
            "next": following if following is not None and following < page.total else None,
        }

    async def sessions_reset(self, session: str) -> dict[str, Any]:
        """
        Let a conversation begin anew: nothing of it stands in a prompt any more, and what waits is dropped.

        The file of its history stays as it is: histories are never rewritten.
        """
        key = _session(session)
        await self._known(key)
        await self._store.reset_session(key)
        tail = await self._memory.load_history(str(key), max_messages=1)
        await self._memory.save_consolidation(str(key), summary="", cursor=tail.total)
        return {"session": str(key), "forgotten": tail.unconsolidated}

    async def sessions_reindex(self) -> dict[str, Any]:
        """Make the search index anew from the histories."""
        if self._upkeep is None:
            raise NotFound("there is no search index here")
        return dict(await self._upkeep.reindex())

    async def _known(self, key: SessionKey) -> None:
        if str(key) not in await self._memory.sessions() and not await self._store.inbox(
            session=key, limit=1
        ):
            raise NotFound(f"there is no session {key}; `squidbot sessions list` shows them")

    # ── memory ──

    async def memory_show(self, scope: str = "owner") -> dict[str, Any]:
        """A memory document."""
        document = await self._memory.load_global_memory(parse_scope(scope))
        return {"scope": scope, "version": document.version, "text": document.text}

    async def memory_history(self, scope: str = "owner") -> dict[str, Any]:
        """Every version of a memory document, oldest first."""
        versions = await self._memory.memory_versions(parse_scope(scope))
        return {
            "scope": scope,
            "versions": [
                {
                    "version": document.version,
                    "written_at": written_at.isoformat(),
                    "session": session,
                    "turn": turn,
                    "text": document.text,
                }
                for document, written_at, session, turn in versions
            ],
        }

    async def memory_diff(
        self, scope: str = "owner", older: int | None = None, newer: int | None = None
    ) -> dict[str, Any]:
        """What changed between two versions of a memory document; by default in the last one."""
        where = parse_scope(scope)
        texts = {0: ""} | {
            document.version: document.text for document, *_ in await self._memory.memory_versions(where)
        }
        last = (await self._memory.load_global_memory(where)).version
        new = last if newer is None else newer
        old = max(0, new - 1) if older is None else older
        for wanted in (old, new):
            if wanted not in texts:
                known = ", ".join(str(number) for number in sorted(texts))
                raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
        lines = unified_diff(
            texts[old].splitlines(), texts[new].splitlines(), f"version {old}", f"version {new}", lineterm=""
        )
        return {"scope": scope, "older": old, "newer": new, "diff": list(lines)}

    async def usage(self, days: int = 30) -> dict[str, Any]:
        """Tokens and money of the last days, by day, purpose and model."""
        rows: dict[tuple[str, str, str], Usage] = {}
        for row in await self._store.usage(days=days):
            key = (row.day, row.purpose, row.model)
            rows[key] = rows.get(key, Usage()) + row.usage
        return {
            "days": days,
            "rows": [
                {"day": day, "purpose": purpose, "model": model, **_spent(usage)}
                for (day, purpose, model), usage in sorted(rows.items(), reverse=True)
            ],
            "by_purpose": {
                purpose: _spent(sum((use for key, use in rows.items() if key[1] == purpose), Usage()))
                for purpose in sorted({key[1] for key in rows})
            },
        }

    async def memory_undo(self, scope: str = "owner", to: int | None = None) -> dict[str, Any]:
        """
        Bring back the version before the current one, or version ``to``, as a new version.

        The text is what was written; nothing is removed from the history of the document.
        """
        where = parse_scope(scope)
        current = await self._memory.load_global_memory(where)
        texts = {
            document.version: document.text for document, *_ in await self._memory.memory_versions(where)
        }
        wanted = current.version - 1 if to is None else to
        if wanted not in texts and wanted != 0:
            known = ", ".join(str(number) for number in sorted(texts)) or "none"
            raise NotFound(f"there is no version {wanted} of this memory; known: {known}")
        if current.version == 0:
            raise NotFound("nothing was ever written to this memory")
        document = await self._memory.save_global_memory(
            where, texts.get(wanted, ""), base_version=current.version
        )
        return {"scope": scope, "version": document.version, "restored": wanted, "text": document.text}


OPERATIONS = frozenset(
    {
        "status",
        "inbox_list",
        "inbox_show",
        "inbox_retry",
        "inbox_drop",
        "sessions_list",
        "sessions_show",
        "sessions_page",
        "sessions_reindex",
        "sessions_reset",
        "memory_diff",
        "memory_show",
        "memory_history",
        "memory_undo",
        "usage",
    }
)


def parse_scope(text: str) -> MemoryScope:
    """
    Read the name of a memory document: ``owner``, ``person:ADDRESS`` or ``room:SESSION``.

    Raises:
        RequestInvalid: It is something else.
    """
    kind, _, name = text.partition(":")
    if text == "owner":
        return OWNER
    if kind == "person" and name:
        return MemoryScope(ScopeKind.PERSON, name)
    if kind == "room" and name:
        return MemoryScope(ScopeKind.ROOM, str(_session(name)))
    raise RequestInvalid(f"whose memory is {text!r}? Write owner, person:ADDRESS or room:SESSION")


def show_scope(scope: MemoryScope) -> str:
    """What `parse_scope` reads."""
    return f"{scope.kind.value}:{scope.name}" if scope.name else scope.kind.value


def _spent(usage: Usage) -> dict[str, Any]:
    return usage.model_dump(include={"calls", "prompt_tokens", "completion_tokens", "cost_usd"})


def _session(text: str) -> SessionKey:
    try:
        return SessionKey.parse(text)
    except ValueError as error:
        raise RequestInvalid(f"{text!r} is no session; `squidbot sessions list` shows them") from error


def _inbox_state(text: str) -> InboxState:
    try:
        return InboxState(text)
    except ValueError as error:
        known = ", ".join(state.value for state in InboxState)
        raise RequestInvalid(f"there is no state {text!r}; known: {known}") from error


def _within(limit: int) -> int:
    return min(max(limit, 1), _MOST)
