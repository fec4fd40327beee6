"""
``!undo`` removes the last exchange from what a model sees, ``!retry`` also asks its question again.

The history keeps it, followed by a line with an id derived from the command
(`agent_core.models.withdrawn_ids`), and so is the repeated question's id: repeating the command is
harmless. Effects of tools stay, and the next model gets their names and counts, not their arguments. In
groups people take back only what they asked alone, unless they are the owner or moderate. What the present
readers may not see, or what is summarised, is not taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_core.language import _, gettext_noop
from agent_core.memory.scopes import hidden_from, private_in
from agent_core.messages import (
    Audience,
    InboundMessage,
    OutboundKind,
    Sender,
)
from agent_core.models import Message, in_force
from agent_core.prompt import transcript_file_name, transcripts_in
from channels.base import Channel
from gateway.routing.access import Access, Role, is_admitted, normalise
from gateway.store.shared import SHARED
from gateway.store.states import BUDGET, InboxState, OutboxState
from gateway.store.stores import InboxRow, Pending, Queue
from gateway.turns.commands.chat_command_context import CommandContext
from gateway.turns.commands.command_parsing import is_only_read, parse_command
from gateway.turns.commands.command_text import TAKEN_OVER, for_people, tool_line
from gateway.turns.commands.conversation_commands import Histories
from gateway.turns.commands.worded_answers import recorded_reply
from gateway.turns.questions.question_text import safe_line
from gateway.turns.questions.questions import CommandReply
from gateway.turns.transcription import sound_files
from gateway.turns.user_input import earlier_tool_uses

_LOOKED_AT = 200
_STAYS = gettext_noop("What I did or noted because of it stays. Another `!undo` removes the question before.")
_LINES = 500
_REDACTED = gettext_noop("You have withdrawn that question, so I do not answer it again.")
_BUSY = gettext_noop(
    "An earlier message here is not answered yet. Wait for the answer, or say `!stop`. Nothing was done."
)
_ASKED = gettext_noop(
    "My question `{name}` here waits for your answer. Write `!approve {name}` or `!reject {name}`, or "
    "`!stop` to drop what it is for. Nothing was done."
)
_LOOKS_AGAIN = gettext_noop(
    "An earlier message here is not answered yet. If it waits for the budget or for credit at a provider, I "
    "try it again now; otherwise wait for the answer, or say `!stop`."
)
_NOT_YOURS = gettext_noop("The last question here is not only yours, so I leave it as it is.")
_NOTHING = gettext_noop("There is no question here whose answer I could withdraw.")
_SUMMARISED = gettext_noop(
    "What was said before this is already part of my summary of the conversation, and I cannot remove it "
    "from there. `!new` sets the summary aside, too."
)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The lines of a turn with a question in it."""

    turn: str
    lines: Sequence[Message]

    def belongs_to(self, address: str) -> bool:
        """Return True if all its questions are this person's."""
        return all(
            each.sender is not None and normalise(each.sender) == normalise(address)
            for each in self.lines
            if each.role == "user"
        )


@dataclass(eq=False)
class RetryAndUndo:
    """Withdraws exchanges. One instance for all sessions."""

    store: Queue
    histories: Histories
    access: Access
    channels: Mapping[str, Channel]

    async def undo(self, asked: CommandContext) -> str:
        """Hide the last exchange; repeatable. Raises `StoreUnavailable` or `StorageUnavailable`."""
        lines, total = await self._lines(asked)
        done = _done_by(asked, lines)
        if done is None:
            if await self._is_busy(asked):
                return await self._why_busy(asked)
            later = await self._said_later(asked)
            exchange = _last(
                [each for each in in_force(lines) if each.turn not in later and _is_shown(asked, each)]
            )
            if exchange is None:
                return _SUMMARISED if total > len(lines) else _NOTHING
            if not self._may_undo(asked, exchange):
                return _NOT_YOURS
            await self._mark(asked, exchange.turn)
        else:
            exchange = _Exchange(done, [each for each in lines if each.turn == done])
        # Whoever moderates a room may take back what they were never shown.
        mine = asked.turn.session == SHARED or exchange.belongs_to(asked.message.sender.address)
        said = next((for_people(each) for each in exchange.lines if each.role == "user"), "")
        if said.startswith(TAKEN_OVER):
            return _("I no longer see what was taken over. {stays}", stays=_(_STAYS))
        what = f": `{safe_line(said)}`" if mine and said else "."
        return _(
            "I no longer see the last question and its answer{what}\n\n{stays}", what=what, stays=_(_STAYS)
        )

    async def retry(self, asked: CommandContext) -> CommandReply:
        """Ask the last question again; repeatable. Raises `StoreUnavailable` or `StorageUnavailable`."""
        message = asked.message
        again_id = f"{message.native_id} again"
        if await self.store.inbox.find_by_key(message.channel, message.account, again_id) is not None:
            return CommandReply("")
        if await self._is_busy(asked):
            if asked.owner:
                await self.store.maintenance.due_now(BUDGET)
            why = await self._why_busy(asked)
            return CommandReply(_LOOKS_AGAIN if asked.owner and why == _BUSY else why)
        lines, total = await self._lines(asked)
        done = _done_by(asked, lines)
        # Of a question that its sender has deleted, they are told so.
        gone = {each.undoes for each in lines if each.undoes and (each.id or "").endswith(".undo")} - {done}
        rows = await self._question(asked, gone, done)
        left = [row for row in rows if not row.message.notes.redacted]
        if not left:
            return CommandReply(
                _REDACTED if rows else _("There is no question here that I could answer again.")
            )
        rows = left
        me = normalise(message.sender.address)
        others = any(normalise(row.message.sender.address) != me for row in rows)
        if others and asked.turn.session != SHARED:  # there all addresses are one person's
            return CommandReply(_NOT_YOURS)
        again = _again(asked, [row.message for row in rows], again_id)
        again = again.with_notes(
            replace(
                again.notes,
                asked_by=asked.turn.head.id,
                done_before=await self._done_before(asked, rows),
            )
        )
        words = _known_words(rows, await self._lines_of(asked, rows, lines, total))
        if words or again.context.spoken:  # without these it could be an answer to what is asked now
            again = again.with_notes(replace(again.notes, known_words=words))
        if not again.text and not again.attachments:
            return CommandReply(
                _("That is too long ago: I no longer have the question. Please ask it again.")
            )
        turn = rows[-1].turn
        if done is None and turn is not None and any(each.turn == turn for each in lines):
            await self._mark(asked, turn)
        elsewhere = rows[-1].message.session != message.session
        if self.channels[message.channel].capabilities.edits and not elsewhere:
            replaced = tuple(await self._answer_of(rows))
            again = again.with_notes(replace(again.notes, replaces=replaced))
        pending = Pending(again, session=asked.turn.session)
        await self.store.inbox.accept(message.channel, message.account, [pending], {})
        return CommandReply("")

    # ── inside ──

    async def _lines(self, asked: CommandContext) -> tuple[Sequence[Message], int]:
        """Return the lines that are not summarised yet, and the number of all lines."""
        tail = await self.histories.tail(asked.turn.session)
        return tail.messages, tail.total

    async def _lines_of(
        self, asked: CommandContext, rows: Sequence[InboxRow], lines: Sequence[Message], total: int
    ) -> Sequence[Message]:
        """The lines of questions with sounds, also if they are part of the summary by now."""
        turns = {each.turn for each in lines}
        if all(row.turn in turns or not sound_files(row.message) for row in rows):
            return lines
        start = max(0, total - _LINES)
        page = await self.histories.memory.load_segment(asked.session.id, start=start, max_messages=_LINES)
        return page.messages

    async def _is_busy(self, asked: CommandContext) -> bool:
        """Return True if a message from before the command is queued or in progress."""
        rows = await self.store.inbox.rows(
            states=[InboxState.READY, InboxState.RUNNING], session=asked.turn.session, limit=_LOOKED_AT
        )
        before = asked.turn.head.id
        return any(_place(row) <= before and not self._is_command(row.message) for row in rows)

    async def _why_busy(self, asked: CommandContext) -> str:
        """The reply while a message waits: for its person's yes, or for the answer."""
        me = normalise(asked.message.sender.address)
        for one in await self.store.approvals.questions():
            is_here = one.session == asked.turn.session and one.verdict is None and one.form is None
            if is_here and (asked.owner or me in map(normalise, one.asked)):
                return _(_ASKED, name=one.name)
        return _BUSY

    async def _said_later(self, asked: CommandContext) -> set[str]:
        """The turns of what was said after the command: one that failed may be tried again behind them."""
        rows = await self.store.inbox.rows(session=asked.turn.session, limit=_LOOKED_AT)
        before = {row.turn for row in rows if _place(row) < asked.turn.head.id}
        return {row.turn for row in rows if row.turn is not None and row.turn not in before}

    def _may_undo(self, asked: CommandContext, exchange: _Exchange) -> bool:
        message = asked.message
        moderates = message.audience is Audience.GROUP and message.context.moderator
        owner = self.access.decide(message).role is Role.OWNER
        return owner or moderates or exchange.belongs_to(message.sender.address)

    async def _mark(self, asked: CommandContext, turn: str) -> None:
        """Say in the history that a turn was taken back; the same line however often it is done."""
        mark = Message(
            role="system",
            content="[What was said before in this turn was taken back.]",
            id=f"{asked.turn.id}.undo",
            turn=asked.turn.id,
            timestamp=asked.message.received_at,
            sender=asked.message.sender.address,
            scope=str(asked.session.scope),
            undoes=turn,
        )
        await self.histories.memory.append_message(asked.session.id, mark, durable=True)

    async def _question(self, asked: CommandContext, gone: set[str], done: str | None) -> list[InboxRow]:
        """The rows of the last question that was not taken back, or of that which this command took back."""
        states = [InboxState.ANSWERED, InboxState.SETTLED, InboxState.DEAD]
        rows = await self.store.inbox.rows(states=states, session=asked.turn.session, limit=_LOOKED_AT)
        asked_before = [
            row
            for row in rows
            if _place(row) < asked.turn.head.id
            and row.message.kind == "message"
            and row.message.audience is asked.message.audience
            and row.turn is not None
            and row.turn not in gone
            and not self._is_command(row.message)
        ]
        turn = done or next((row.turn for row in asked_before), None)
        return [row for row in reversed(asked_before) if row.turn == turn]

    async def _done_before(self, asked: CommandContext, rows: Sequence[InboxRow]) -> dict[str, int]:
        """Count the tools used for these questions so far, for the model that answers again."""
        used = earlier_tool_uses([row.message for row in rows])
        turns = {row.turn for row in rows}
        for receipt in await self.store.receipts.newest(session=asked.turn.session, limit=1_000):
            if receipt.turn in turns:
                name = tool_line(receipt)
                used[name] = used.get(name, 0) + 1
        return used

    def _is_command(self, message: InboundMessage) -> bool:
        channel = self.channels.get(message.channel)
        email_style = channel is not None and channel.capabilities.email_style
        return (
            message.kind == "reaction"
            or is_only_read(message)
            or bool(message.context.unreadable)
            or message.context.noted is not None
            or recorded_reply(message) is not None
            or parse_command(message, email_style=email_style) is not None
        )

    async def _answer_of(self, rows: Sequence[InboxRow]) -> list[str]:
        """
        The provider ids of what was answered, part by part; an answer that was never sent has none.

        Nor has one further up, where nobody would see that it changes: something was said below it since.
        """
        found = await self.store.inbox.row(rows[-1].id)
        sent = sorted(found[1], key=lambda each: each.id) if found is not None else []
        newest = next(iter(await self.store.approvals.newest_rows(rows[-1].message.session)), None)
        if not sent or (newest is not None and newest.id > sent[-1].id):
            return []
        return [
            row.provider_id
            for row in sent
            if row.provider_id
            and row.state is OutboxState.SENT
            and row.message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
            and row.message.context.speech is None
        ]


def _done_by(asked: CommandContext, lines: Sequence[Message]) -> str | None:
    """The turn that this very command has taken back, before it was cut off."""
    return next((each.undoes for each in lines if each.id == f"{asked.turn.id}.undo"), None)


def _is_shown(asked: CommandContext, each: Message) -> bool:
    """Return True if the present conversation may show a line."""
    return not hidden_from(str(asked.session.scope), private_in([each.scope]))


def _place(row: InboxRow) -> int:
    """Return a message's place in the conversation; a repeated question has that of its command."""
    asked_by = row.message.notes.asked_by
    return row.id if asked_by is None else asked_by


def _last(lines: Sequence[Message]) -> _Exchange | None:
    """The newest turn in which a question was asked."""
    turn = next((each.turn for each in reversed(lines) if each.role == "user" and each.turn), None)
    return None if turn is None else _Exchange(turn, [each for each in lines if each.turn == turn])


def _again(asked: CommandContext, questions: Sequence[InboundMessage], native_id: str) -> InboundMessage:
    """
    The question as a new message of who asks.

    It is as trusted as all of its parts were: what others have said in them does not become the sender's own
    words, and a sender who was not verified then is not now.
    """
    message = asked.message
    others = message.context.others_words or any(each.context.others_words for each in questions)
    recorded = [digest for each in questions for digest in each.context.spoken]
    sounds = [file.sha256 for each in questions for file in sound_files(each)]
    if message.context.subject is None and not set(sounds) <= set(recorded):
        # Files of a mail are listened to here, too; who speaks in them nobody knows here either.
        recorded, others = sounds, True
    # A deletion of one of them takes this away, too. What was copied may be a copy itself.
    copies = tuple(name for each in questions for name in (*each.notes.copies, each.native_id))
    admitted = message.notes.admitted or any(map(is_admitted, questions))
    context = replace(
        message.context,
        others_words=others,
        spoken=tuple(recorded) or message.context.spoken,
        outbound=questions[-1].context.outbound if all(each.context.outbound for each in questions) else "",
        notes=replace(message.notes, copies=copies, admitted=admitted),
    )
    sender = message.sender
    verified = sender.verified and all(each.sender.verified for each in questions)
    return InboundMessage(
        channel=message.channel,
        account=message.account,
        native_id=native_id,
        session=message.session,
        sender=Sender(address=sender.address, name=sender.name, verified=verified),
        text="\n\n".join(text for text in map(_text_now, questions) if text),
        received_at=message.received_at,
        audience=message.audience,
        attachments=tuple(file for each in questions for file in each.attachments),
        context=context,
        background=tuple(each for question in questions for each in question.background),
    )


def _known_words(rows: Sequence[InboxRow], lines: Sequence[Message]) -> dict[str, dict[str, Any]]:
    """Return the transcripts of a question's sound files by digest, so that they are not paid again."""
    if any("[Spoken in" in row.message.model_dump_json() for row in rows):
        return {}  # somebody has written what a program might have heard
    turns = {row.turn for row in rows}
    known: dict[str, dict[str, Any]] = {}
    for each in lines:  # one for each message: clients call all voice messages the same
        if each.role == "user" and each.turn in turns:
            for name, heard in transcripts_in(each.content).items():
                files = [file.sha256 for file in each.attachments if transcript_file_name(file.name) == name]
                if len(files) == len(heard):  # else one of them was not heard, and nobody knows which
                    known |= dict(zip(files, heard, strict=True))
    return known


def _text_now(message: InboundMessage) -> str:
    """Return the present text of a message, which may have been edited after its answer."""
    return message.text if message.notes.edited is None else message.notes.edited
