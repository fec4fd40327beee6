"""
The handlers of the commands: what each does and answers. Everything here can be done twice with the same
outcome: a command whose process dies before its answer is committed is done again. Nobody learns of a
conversation that is not the one they speak in, and what is about others is told to the owner alone, where
nobody else reads along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from agent_core.errors import DocumentUnusable, MemoryConflict
from agent_core.language import _, gettext_noop, ngettext
from agent_core.memory_ports import MemoryPort
from agent_core.messages import Audience
from agent_core.models import ScopeKind, Session
from agent_core.text import read_number
from gateway.routing.access import Access, Role, normalise
from gateway.store.states import InboxState
from gateway.store.stores import Queue, Turn
from gateway.system.terminal_text import span
from gateway.turns.commands.chat_command_context import NOT_HERE, CommandContext
from gateway.turns.commands.command_parsing import Command
from gateway.turns.commands.command_text import about_parts, help_text, stopped_text
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.questions.decisions import Decision, clean_name, is_call, is_review_name
from gateway.turns.questions.questions import CommandReply, Questions
from gateway.turns.questions.tool_grants import parse_terms

_NOT_YOURS = gettext_noop(
    "Other people take part in this conversation, so I continue it. Only my owner or a moderator of the "
    "room can start a new one here."
)
_LATER = gettext_noop(
    "If you answer after your next message, what comes of it is part of the new conversation."
)
_MORE = gettext_noop(
    "\n\n(I have run only the command in the first line. Please send the rest as a separate message.)"
)


Handler = Callable[[CommandContext], Awaitable[CommandReply | str]]
"""Answers one command."""


@dataclass(eq=False, kw_only=True)
class CommandHandlers:
    """
    Runs commands. One instance for all sessions.

    Args:
        others: The commands that have files of their own, by name.
    """

    store: Queue
    memory: MemoryPort
    conversations: NewConversation
    access: Access
    questions: Questions
    status: Callable[[], Awaitable[Mapping[str, Any]]]
    others: Mapping[str, Handler]

    def __post_init__(self) -> None:
        self._handlers: dict[str, Handler] = {
            "help": self._help,
            "new": self._new,
            "stop": self._stop,
            "status": self._status_text,
            "memory": self._memory_text,
            "approve": self._decide,
            "reject": self._decide,
            "answer": self._answer,
            "grant": self._grant,
            **self.others,
        }

    async def to(self, turn: Turn, command: Command, session: Session) -> CommandReply:
        """Run a command; return its answer. Raises StoreUnavailable or StorageUnavailable; repeatable."""
        message = turn.head.message
        role = self.access.decide(message).role
        owner = role is Role.OWNER and message.audience is Audience.DIRECT
        asked = CommandContext(command, turn, message, session, owner, is_owner=role is Role.OWNER)
        said = await self._handlers[command.name](asked)
        told = said if isinstance(said, CommandReply) else CommandReply(said)
        more = command.more and command.name != "stop"
        return replace(told, text=_(told.text) + _(_MORE)) if more else told

    async def _help(self, asked: CommandContext) -> str:
        return help_text(asked.command.argument, owner=asked.owner, name=asked.bot_name)

    async def _new(self, asked: CommandContext) -> str:
        if not await self._may_reset(asked):
            return _NOT_YOURS
        before = await self.conversations.request_reset(asked.turn)
        if not before:
            return _("A new conversation starts here: I have set aside what was said before. My notes stay.")
        waits = ngettext("1 message waits", "{n} messages wait", before)
        open_here = await self.questions.call_lines(asked.message, everywhere=False)
        told = _(
            "A new conversation starts with your next message. {waits} from before; the answer is still "
            "part of the old conversation, unless you say `!stop`. My notes stay.",
            waits=waits,
        )
        if open_here:
            told = "\n".join([told, "", _("For your answer wait:"), "", *open_here, "", _(_LATER)])
        return told

    async def _may_reset(self, asked: CommandContext) -> bool:
        """Return True if the sender may reset: it is their own conversation, or they moderate the room."""
        message = asked.message
        if message.audience is Audience.DIRECT or message.context.moderator:
            return True
        return self.access.decide(message).role is Role.OWNER or await self.conversations.has_one_author(
            asked.turn
        )

    async def _stop(self, asked: CommandContext) -> str:
        return stopped_text(asked.message, owner=self.access.decide(asked.message).role is Role.OWNER)

    async def _status_text(self, asked: CommandContext) -> str:
        report = await self.status()
        rows = await self.store.inbox.rows(states=[InboxState.READY], session=asked.turn.session, limit=5000)
        me = normalise(asked.message.sender.address)
        waiting = [row for row in rows if normalise(row.message.sender.address) == me]
        count = len(waiting)
        here = (
            ngettext("1 of your messages waits here", "{n} of your messages wait here", count)
            if waiting
            else _("nothing else waits here")
        )
        up = span(float(report.get("uptime_s") or 0.0))
        models = report.get("models") or {}
        away = bool(models) and all(
            member.get("cooling_s", 0) > 0 for pool in models.values() for member in pool
        )
        lines = [_("I have been running for {up}; {here}.", up=up, here=here)]
        if away:
            lines.append(_("My language model is not answering at the moment; I keep trying."))
        if asked.owner:
            waiting_here = await self.questions.overview(asked.message, private=True)
            lines += ["", *about_parts(report), "", waiting_here]
            if (oldest := (report.get("work") or {}).get("oldest_question_s")) is not None:
                lines.append(
                    _(
                        "\nThe oldest waits for {span}. Answer: `!approve NAME`, `!reject NAME`",
                        span=span(float(oldest)),
                    )
                )
        return "\n".join(lines)

    async def _undo_memory(self, asked: CommandContext, wanted: int | None) -> str:
        """Bring a version (None: the one before) back, with its origins; once, also if it runs twice."""
        scope, turn = asked.session.scope, asked.turn.id
        if scope.kind is ScopeKind.ROOM and not await self._may_reset(asked):
            return _NOT_YOURS
        try:
            current = await self.memory.load_global_memory(scope)
            versions = await self.memory.memory_versions(scope)
            if not any(by == turn for *__, by in versions):
                known = {each.version: each for each, *__ in versions}
                number = current.version - 1 if wanted is None else wanted
                before = known.get(number)
                if before is None and (number != 0 or not current.version):
                    return _("There is no such version of my notes.")
                await self.memory.save_global_memory(
                    scope,
                    before.text if before else "",
                    base_version=current.version,
                    session_id=asked.session.id,
                    turn=turn,
                    origins=before.origins if before else (),
                )
        except DocumentUnusable as error:
            return _("I cannot read it: {error}.", error=error) if asked.owner else error.public
        except MemoryConflict:
            return _("My notes have just been changed elsewhere, so nothing was done. `!memory` shows them.")
        which = _("before the last change") if wanted is None else f"{wanted}"
        return _("The version of my notes {which} is back. `!memory undo` takes that back.", which=which)

    async def _memory_text(self, asked: CommandContext) -> str:
        if what := clean_name(asked.command.argument):
            undo, __, digits = what.partition(" ")
            number = read_number(digits)
            if undo == "undo" and (number is not None or not digits):
                return await self._undo_memory(asked, number)
            return _("Write `!memory`, `!memory undo` or `!memory undo NUMBER`. Nothing was done.")
        try:
            document = await self.memory.load_global_memory(asked.session.scope)
        except DocumentUnusable as error:
            return _("I cannot read it: {error}.", error=error) if asked.owner else error.public
        whose = {
            ScopeKind.OWNER: _("you"),
            ScopeKind.PERSON: _("you"),
            ScopeKind.ROOM: _("this conversation"),
        }[asked.session.scope.kind]
        if not document.text.strip():
            return _("I have no notes about {whose} yet.", whose=whose)
        return _("These are my notes about {whose}:\n\n{strip}", whose=whose, strip=document.text.strip())

    async def _decide(self, asked: CommandContext) -> CommandReply | str:
        """Decide about what is named, each for whoever may; without a name, say what waits."""
        argument, yes = asked.command.argument, asked.command.name == "approve"
        if not argument:
            return await self.questions.overview(asked.message, private=asked.owner)
        names, why = _names_of_items(argument)
        if not names or (yes and why):
            names, why = [argument if yes else argument.partition(" ")[0]], ""  # nothing has that name
        if not asked.owner and not all(map(is_call, names)):
            return NOT_HERE
        decided = [await self.questions.decide(name, Decision(yes, why), asked.message) for name in names]
        refused = dict.fromkeys(session for each in decided for session in each.refused)
        return CommandReply("\n".join(each.text for each in decided), tuple(refused))

    async def _answer(self, asked: CommandContext) -> CommandReply | str:
        name, __, text = asked.command.argument.partition(" ")
        if not is_call(clean_name(name)):
            return _(
                "Write `!answer NAME VALUE`, with the name of the server's question. Nothing was sent to "
                "a server."
            )
        return await self.questions.decide(clean_name(name), Decision(text=text), asked.message)

    async def _grant(self, asked: CommandContext) -> CommandReply | str:
        name, *words = asked.command.argument.split() or [""]
        terms = parse_terms(words)
        if not is_call(clean_name(name)) or terms is None:
            return _("Write `!grant NAME 1h`, with the name of my question; at most a day. Nothing was done.")
        return await self.questions.decide(clean_name(name), Decision(terms=terms), asked.message)


def _names_of_items(argument: str) -> tuple[list[str], str]:
    """The names of calls, drafts and kept messages with which an argument begins, and the rest."""
    words = argument.replace(",", " ").split()
    names = list(takewhile(lambda name: is_call(name) or is_review_name(name), map(clean_name, words)))
    return names, argument if not names else " ".join(argument.replace(",", " ").split()[len(names) :])
