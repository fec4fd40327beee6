"""
Commands about what was said: ``!search`` finds it, ``!export`` gives it as a file. Both show what the
conversation may show a model at this moment, and no more: the scope of the conversation, nothing from before
somebody came into it, and nothing that was said to somebody else alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import anyio.to_thread

from agent_core.language import _, gettext_noop, ngettext, show_time
from agent_core.memory.scopes import hidden_from, private_in
from agent_core.memory_ports import MemoryPort, SearchPort, SearchRequest
from agent_core.messages import Attachment, Audience, SessionKey
from agent_core.models import HistoryTail, Message, SearchHit, is_undone, withdrawn_ids
from agent_core.storage.search_index.word_splitting import fold, parse_query
from agent_core.text import one_line
from channels.attachments.attachment_storage import AttachmentsUnavailable
from channels.base import AttachmentRefused
from gateway.routing.access import normalise
from gateway.routing.conversations import place_name
from gateway.turns.commands.chat_command_context import CommandContext
from gateway.turns.commands.command_text import excerpt_for_people, for_people
from gateway.turns.questions.question_text import visible
from gateway.turns.questions.questions import CommandReply

PAGE, PAGE_CHARS = 5_000, 8_000_000
"""
So much of a history is read at a time. Each page may read the file from its beginning, so small pages of a
long conversation take the processor for many seconds.
"""


KeepFile = Callable[[str, str, bytes], Awaitable[Attachment]]
"""Keeps a file of ours, by its name, its type and its content."""
_MAX_FOUND = 8
_FOUND_CHARS = 240
_MAX_LINES = 20_000
_MAX_CHARS = 4_000_000


class ConversationCommands:
    """Searches and exports. One instance for all sessions."""

    def __init__(self, histories: Histories, search: SearchPort, keep: KeepFile) -> None:
        self._histories = histories
        self._memory = histories.memory
        self._search = search
        self._keep = keep

    async def search(self, asked: CommandContext) -> str:
        """The messages that fit the words best."""
        words = asked.command.argument
        if not any(char.isalnum() for char in words):
            return _("Write `!search WORDS`: I look for what was said about them. Nothing was done.")
        since = asked.session.since
        await self._histories.flush(asked.turn.session)  # what was said here just now
        answer = await self._search.search(
            SearchRequest(asked.session.scope, words, since, max_results=_MAX_FOUND)
        )
        found = _found_in(answer.hits, words, since)
        lines = [self._found(*each, asked.session.id, words) for each in found]
        lines = lines[:_MAX_FOUND]
        if lines and answer.more > 0:
            lines.append(_("\n{more} more fit less well.", more=answer.more))
        if not answer.complete:
            lines = lines or [_("Nothing was found so far.")]
            lines.append(
                _(
                    "\n(Older messages cannot be searched yet: the index is still being filled. "
                    "Try again later.)"
                )
            )
        return "\n".join(lines or [_("Nothing was found.")])

    def _found(self, session: str, message: Message, part: str, here: str, words: str) -> str:
        where = _("here") if session == here else place_name(SessionKey.parse(session))
        shown = visible(excerpt_for_people(message, words, _FOUND_CHARS, part)).replace("`", "'")
        return f"- {_when(message)}, {where}, {_who(message)}: `{shown}`"

    async def export(self, asked: CommandContext) -> CommandReply:
        """Export a conversation as Markdown, in groups only the person's turns. Raises `StoreUnavailable`."""
        lines, earlier = await self._lines(asked.session.id)
        # Of a long conversation this takes as long as many turns.
        lines, content = await anyio.to_thread.run_sync(_file_of, asked, lines, earlier)
        if not lines:
            return CommandReply(_("Nothing has been said here yet."))
        name = f"conversation-{asked.message.received_at:%Y-%m-%d}.md"
        try:
            file = await self._keep(name, "text/markdown", content.encode())
        except AttachmentRefused as error:
            return CommandReply(_("I cannot create the file: {public}", public=error.public))
        except AttachmentsUnavailable as error:
            return CommandReply(_("I cannot create the file now: {public}", public=error.public))
        count = len(lines)
        told = ngettext(
            "Here is this conversation: 1 message.", "Here is this conversation: {n} messages.", count
        )
        if asked.message.audience is Audience.GROUP:
            told = ngettext(
                "Here is what you and I have said here: 1 message.",
                "Here is what you and I have said here: {n} messages.",
                count,
            )
        return CommandReply(told, attachments=(file,))

    async def _lines(self, session: str) -> tuple[Sequence[Message], int]:
        """The newest lines of a conversation, and how many there are before them."""
        total = (await self._memory.load_history(session, max_messages=1)).total
        first = start = max(0, total - _MAX_LINES)
        lines: list[Message] = []
        while start < total:
            page = await self._memory.load_segment(
                session, start=start, max_messages=PAGE, max_chars=PAGE_CHARS
            )
            if not page.positions:
                break
            lines += page.messages
            start = page.positions[-1] + 1
        return lines, first


def _file_of(asked: CommandContext, lines: Sequence[Message], earlier: int) -> tuple[Sequence[Message], str]:
    """Select the lines that may be shown and render the text of the file. Pure."""
    session, scope = asked.session, str(asked.session.scope)
    seen = [
        line
        for line in lines
        if (session.since is None or (line.timestamp is not None and line.timestamp >= session.since))
        and not hidden_from(scope, private_in([line.scope]))
    ]
    if asked.message.audience is Audience.GROUP:
        me = normalise(asked.message.sender.address)
        mine = {line.turn for line in seen if line.sender is not None and normalise(line.sender) == me}
        seen = [line for line in seen if line.turn is not None and line.turn in mine]
    said = [line for line in seen if line.role in ("user", "assistant") and line.content.strip()]
    size, keep = 0, len(said)
    while keep and size + len(said[keep - 1].content) <= _MAX_CHARS:
        keep -= 1
        size += len(said[keep].content)
    return said[keep:], as_markdown(said[keep:], left_out=earlier + keep, undone=withdrawn_ids(lines))


def as_markdown(lines: Sequence[Message], *, left_out: int = 0, undone: Collection[str] = ()) -> str:
    """The text of the file: each message with its sender and time, without the results of tools."""
    parts = [_("# Conversation\n")]
    if left_out:
        parts.append(_("_{left_out} older messages are not in this file._\n", left_out=left_out))
    for line in lines:
        files = "".join(_("\n- file: {name}", name=one_line(file.name, 120)) for file in line.attachments)
        back = _(" (taken back)") if is_undone(line, undone) else ""
        # As a quotation: whatever somebody has written, it looks like no heading of ours.
        said = "\n".join(f"> {each}".rstrip() for each in for_people(line).strip().splitlines())
        parts.append(f"## {_who(line)}, {_when(line)}{back}\n\n{said}\n{files}")
    return "\n".join(parts).rstrip() + "\n"


def _found_in(
    hits: Sequence[SearchHit], words: str, since: datetime | None
) -> list[tuple[str, Message, str]]:
    """
    The messages of hits with words of the query, each once and the best first: session, message, found part.

    What stands beside a hit and has the words too is no hit of its own.
    """
    query = parse_query(words)
    found: dict[tuple[str, object], tuple[str, Message, str]] = {}
    for hit in hits:
        for number, each in sorted(enumerate(hit.messages), key=lambda one: one[0] != hit.at):
            early = since is not None and (each.timestamp is None or each.timestamp < since)
            if number == hit.at or (not early and query.matches(fold(each.content))):
                key = (hit.session_id, each.id or (each.timestamp, each.content))
                found.setdefault(key, (hit.session_id, each, hit.part(number)))
    return list(found.values())


def _when(message: Message) -> str:
    return (
        show_time(message.timestamp.astimezone(), gettext_noop("%Y-%m-%d %H:%M %Z"))
        if message.timestamp
        else _("at some time")
    )


def _who(message: Message) -> str:
    return "I" if message.role == "assistant" else visible(one_line(message.sender or "somebody", 80))


@dataclass(frozen=True, slots=True)
class Histories:
    """Reads histories of all sessions; ``flush`` waits until one can be read in full."""

    memory: MemoryPort
    flush: Callable[[SessionKey], Awaitable[None]]

    async def tail(
        self, session: SessionKey, *, max_messages: int | None = None, max_chars: int | None = None
    ) -> HistoryTail:
        """Summary and newest lines, as of one moment. Raises `StoreUnavailable` or `StorageUnavailable`."""
        await self.flush(session)
        return await self.memory.load_history(str(session), max_messages=max_messages, max_chars=max_chars)
