"""
``!continue`` lists the owner's recent conversations on all channels, ``!continue 2`` continues one here. It
takes over a moment, the summary and newest messages, as two assistant lines with their origins, committed
with the answer; ``!undo`` takes them back, and nothing in them counts as named by the owner. Only
conversations of the owner alone qualify. Numbers are those of the last shown list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agent_core.language import _, gettext_noop, ngettext
from agent_core.memory.scopes import OWNER
from agent_core.messages import SessionKey
from agent_core.models import HistoryTail, Message, in_force
from agent_core.ports import Clock
from agent_core.prompt import fence
from agent_core.provenance import arriving, join_origins
from agent_core.text import one_line
from gateway.routing.conversations import Conversations, place_name
from gateway.store.background_job_rows import is_background
from gateway.store.stores import Queue
from gateway.system.terminal_text import span
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext
from gateway.turns.commands.command_text import TAKEN_OVER, for_people
from gateway.turns.commands.conversation_commands import PAGE, PAGE_CHARS, Histories
from gateway.turns.questions.question_text import safe_line, visible
from gateway.turns.questions.questions import CommandReply

_LISTED = 9
_MAX_CHARS = 16_000
_SINGLE_CHARS = 4_000
_USE = gettext_noop(
    "Write `!continue` for the list, and `!continue 2` to go on with the second here. Nothing was done."
)
_GONE = gettext_noop(
    "That conversation no longer exists, or it was reset. `!continue` lists your conversations."
)
_OTHERS = gettext_noop("Others have taken part in that conversation, so it stays where it is.")


@dataclass(frozen=True, slots=True)
class _Found:
    """A conversation that can be listed."""

    session: SessionKey
    at: datetime
    title: str


class ContinueCommand:
    """Lists conversations and takes one over. One instance for all sessions."""

    def __init__(
        self, store: Queue, histories: Histories, conversations: Conversations, clock: Clock
    ) -> None:
        self._store = store
        self._histories = histories
        self._memory = histories.memory
        self._conversations = conversations
        self._clock = clock

    async def answer(self, asked: CommandContext) -> CommandReply | str:
        """List, or take over; may be done twice. Raises `StoreUnavailable` or `StorageUnavailable`."""
        if not asked.owner:
            return NOT_HERE
        wanted = asked.command.argument.strip().strip("`#.")
        if not wanted:
            return await self._list(asked)
        if not wanted.isdecimal() or len(wanted) > 2:
            return _USE
        shown = _read(await self._store.state.read(_topic(asked.turn.session)))
        if not 0 < int(wanted) <= len(shown):
            return _(
                "The list that I showed here has no conversation {wanted}. {use}",
                wanted=int(wanted),
                use=_(_USE),
            )
        return await self._take(asked, SessionKey.parse(shown[int(wanted) - 1]))

    async def _list(self, asked: CommandContext) -> str:
        for session in {waiting.session for waiting in await self._store.journal.lines()}:
            await self._histories.flush(session)  # what was said just now
        found = [
            each
            for name in (await self._memory.sessions())[:1_000]
            if name != asked.session.id and (each := await self._look(name)) is not None
        ]
        found.sort(key=lambda each: each.at, reverse=True)
        found = found[:_LISTED]
        shown = {str(each.session): number for number, each in enumerate(found, start=1)}
        await self._store.state.write(_topic(asked.turn.session), json.dumps(shown))
        if not found:
            return _("You have no other conversation that can continue here.")
        now = self._clock.now()
        lines = [
            f"{number}. {safe_line(each.title)} ({place_name(each.session)}, "
            + _("{span} ago)", span=span(max(0.0, (now - each.at).total_seconds())))
            for number, each in enumerate(found, start=1)
        ]
        use = _("`!continue 2` continues the second one here.")
        if len(found) == 1:
            use = _("`!continue 1` continues it here.")
        return "\n".join([_("Your other conversations:"), "", *lines, "", use])

    async def _look(self, name: str) -> _Found | None:
        """A conversation as it is listed; None if nothing of it could go on, by its newest lines."""
        session = SessionKey.parse(name)
        if is_background(session) or session.channel == "heartbeat":
            return None
        tail = await self._memory.load_history(name, max_messages=_LISTED)
        lines = in_force(tail.messages)
        asked = [each for each in lines if each.role == "user"]
        if not (asked or tail.summary) or not self._is_alone(session, tail.messages):
            return None
        title = _title(asked, tail.summary)
        at = next((each.timestamp for each in reversed(lines) if each.timestamp), None)
        return None if at is None else _Found(session, at, title)

    async def _take(self, asked: CommandContext, session: SessionKey) -> CommandReply | str:
        # One moment of it: summary and lines belong together, also while it is being consolidated.
        tail = await self._histories.tail(session, max_chars=2 * _MAX_CHARS)
        said = [
            each for each in in_force(tail.messages) if each.role in ("user", "assistant") and each.content
        ]
        if not said and not tail.summary:
            return _GONE
        if not await self._is_owners_alone(session):
            return _OTHERS
        return self._taken(asked, session, tail, said)

    def _taken(
        self, asked: CommandContext, session: SessionKey, tail: HistoryTail, said: Sequence[Message]
    ) -> CommandReply:
        kept, size = [], 0
        for each in reversed(said):
            gap = "\n" if each.content.startswith("<") else " "
            text = f"{_who(each)}:{gap}{_cut(each.content, _SINGLE_CHARS)}"
            if size + len(text) > _MAX_CHARS:
                break
            kept.append((each, text))
            size += len(text)
        kept.reverse()
        summary = _cut(tail.summary or "", 6_000)
        title = safe_line(_title([each for each in said if each.role == "user"], summary))
        parts = [f"Its summary so far:\n{summary}"] if summary.strip() else []
        parts += [text for __, text in kept]
        now = asked.turn.head.accepted_at
        origins = arriving(
            join_origins(tail.origins if summary else (), *(each.sources for each, __ in kept)), now
        )
        common = {"turn": asked.turn.id, "timestamp": asked.message.received_at, "scope": str(OWNER)}
        where = f"from our conversation on {place_name(session)}"
        history = (
            Message(
                role="user",
                content=f"{TAKEN_OVER}{where}.]",
                id=f"{asked.turn.id}.0",
                sender=asked.message.sender.address,
                origins=(),
                **common,
            ),
            Message(
                role="assistant",
                content=f"[Taken over {where}; it was said there, not here:]\n"
                + fence("taken_over", "\n\n".join(parts)),
                id=f"{asked.turn.id}.1",
                attachments=tuple(file for each, __ in kept for file in each.attachments),
                origins=origins,
                **common,
            ),
        )
        count = ngettext("1 message", "{n} messages", len(kept))
        and_summary = _(" and the summary of what was before") if summary.strip() else ""
        return CommandReply(
            _(
                "We continue {title} ({place_name}) here: I have its newest {count}{and_summary}. "
                "The original stays unchanged; `!undo` reverts this.",
                title=title,
                place_name=place_name(session),
                count=count,
                and_summary=and_summary,
            ),
            history=history,
        )

    async def _is_owners_alone(self, session: SessionKey) -> bool:
        """Return True if nobody else has ever written or read there, by the whole history."""
        start, total = 0, 1
        while start < total:
            page = await self._memory.load_segment(
                str(session), start=start, max_messages=PAGE, max_chars=PAGE_CHARS
            )
            if not self._is_alone(session, page.messages):
                return False
            if not page.positions:
                break
            start, total = page.positions[-1] + 1, page.total
        return True

    def _is_alone(self, session: SessionKey, lines: Sequence[Message]) -> bool:
        """Lines of the owner alone; a proactive message may have no scope."""
        return all(
            each.scope == str(OWNER) or (each.scope is None and each.role == "assistant") for each in lines
        ) and all(
            each.sender is None or self._conversations.access.may_show(session, each.sender)
            for each in lines
            if each.role == "user" and not _is_read_only(each)
        )


def _title(asked: Sequence[Message], summary: str | None) -> str:
    """Make a title of the last question, if possible of one that was not taken over from elsewhere."""
    own = [each for each in asked if not each.content.startswith(TAKEN_OVER)]
    return title_of(next((for_people(each) for each in reversed(own or asked)), summary or "")).strip("[]")


def title_of(words: str) -> str:
    """The first line of a message, or the subject of a mail. Pure."""
    first = next((line.strip() for line in words.splitlines() if line.strip()), _("(no words)"))
    return one_line(visible(first.removeprefix("Subject: ").removeprefix("(spoken) ")), 60)


def _is_read_only(message: Message) -> bool:
    """Return True for a line filed for the owner from a read-only sender (``ingest_only_from``)."""
    return message.scope == str(OWNER) and bool(message.sources)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} […]"


def _who(message: Message) -> str:
    return "you" if message.role == "assistant" else message.sender or "the owner"


def _topic(session: SessionKey) -> str:
    return f"continue:{session}"


def _read(text: str | None) -> list[str]:
    """The sessions that were listed, in order."""
    try:
        kept = json.loads(text or "{}")
        return sorted(map(str, kept), key=lambda name: int(kept[name]))
    except (ValueError, TypeError, AttributeError):
        return []
