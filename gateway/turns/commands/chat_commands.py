"""
The handlers of the commands: what each does and answers. Everything here can be done twice with the same
outcome: a command whose process dies before its answer is committed is done again. Nobody learns of a
conversation that is not the one they speak in, and what is about others is told to the owner alone, where
nobody else reads along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from agent_core.errors import DocumentUnusable, MemoryConflict, ToolError
from agent_core.language import _, gettext_noop, ngettext
from agent_core.memory_ports import MemoryPort
from agent_core.messages import Audience
from agent_core.models import ScopeKind, Session
from agent_core.ports import Clock
from agent_core.provenance import KEPT, describe, from_json
from agent_core.text import read_number, short_hash
from agent_core.tools.effects import Effect
from gateway.proactive.jobs.job_service import JobService
from gateway.routing.access import Access, Role, normalise
from gateway.store.model import EffectReceipt
from gateway.store.states import InboxState
from gateway.store.stores import Queue, Step, Turn
from gateway.system.terminal_text import span
from gateway.turns.commands.asked import NOT_HERE, CommandContext, place_of
from gateway.turns.commands.command_parsing import Command
from gateway.turns.commands.command_text import about_parts, help_text, stopped_text
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commands.reminder_command import about_reminders
from gateway.turns.model_choice import ModelChoice
from gateway.turns.questions.decisions import NOTHING_WAITS, clean_name, is_call
from gateway.turns.questions.question_text import safe_line
from gateway.turns.questions.review_questions import CommandReply, ReviewQuestions
from gateway.turns.questions.tool_grants import ToolGrants, parse_terms
from gateway.turns.user_input import trust_topic, trusted_before

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles

_LOOKED_AT = 5000
_NOTHING = gettext_noop("Nothing waits for your decision.")
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


class CommandHandlers:
    """
    Runs commands. One instance for all sessions.

    Args:
        others: The commands that have files of their own, by name.
    """

    def __init__(
        self,
        *,
        store: Queue,
        memory: MemoryPort,
        conversations: NewConversation,
        access: Access,
        approvals: ReviewQuestions,
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        clock: Clock,
        files: Callable[[], JournaledFiles],
        schedule: JobService,
        owner_addresses: Sequence[str],
        grants: ToolGrants,
        models: ModelChoice,
        others: Mapping[str, Handler],
    ) -> None:
        self._store = store
        self._memory = memory
        self._conversations = conversations
        self._access = access
        self._approvals = approvals
        self._status = status
        self._clock = clock
        self._files = files
        self._schedule = schedule
        self._models = models
        self._owner_addresses = owner_addresses
        self._grants = grants
        self._handlers: dict[str, Handler] = {
            "help": self._help,
            "new": self._new,
            "stop": self._stop,
            "status": self._status_text,
            "memory": self._memory_text,
            "approve": self._approve,
            "reject": self._reject,
            "answer": self._answer,
            "grant": self._grant,
            "trust": self._trust,
            "model": self._model,
            "remind": self._remind,
            **others,
        }

    async def to(self, turn: Turn, command: Command, session: Session) -> CommandReply:
        """Run a command; return its answer. Raises StoreUnavailable or StorageUnavailable; repeatable."""
        message = turn.head.message
        role = self._access.decide(message).role
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
        before = await self._conversations.request_reset(asked.turn)
        if not before:
            return _("A new conversation starts here: I have set aside what was said before. My notes stay.")
        waits = ngettext("1 message waits", "{n} messages wait", before)
        open_here = await self._approvals.calls.overview(asked.message, everywhere=False)
        told = _(
            "A new conversation starts with your next message. {waits} from before; I answer that as "
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
        return self._access.decide(message).role is Role.OWNER or await self._conversations.has_one_author(
            asked.turn
        )

    async def _stop(self, asked: CommandContext) -> str:
        return stopped_text(asked.message, owner=self._access.decide(asked.message).role is Role.OWNER)

    async def _status_text(self, asked: CommandContext) -> str:
        report = await self._status()
        rows = await self._store.inbox.rows(
            states=[InboxState.READY], session=asked.turn.session, limit=_LOOKED_AT
        )
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
            calls = await self._approvals.calls.overview(asked.message, everywhere=True)
            lines += ["", *about_parts(report), "", await self._approvals.overview(calls)]
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
            current = await self._memory.load_global_memory(scope)
            versions = await self._memory.memory_versions(scope)
            if not any(by == turn for *__, by in versions):
                known = {each.version: each for each, *__ in versions}
                number = current.version - 1 if wanted is None else wanted
                before = known.get(number)
                if before is None and (number != 0 or not current.version):
                    return _("There is no such version of my notes.")
                await self._memory.save_global_memory(
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
            document = await self._memory.load_global_memory(asked.session.scope)
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

    async def _approve(self, asked: CommandContext) -> CommandReply | str:
        name = asked.command.argument
        names, rest = _names_of_calls(name)
        if not name or (names and not rest):
            return await self._about_calls(asked, names, yes=True)
        if not asked.owner:
            return NOT_HERE
        return await self._approvals.decide(name, yes=True)

    async def _about_calls(
        self, asked: CommandContext, names: Sequence[str], *, yes: bool, why: str = ""
    ) -> str:
        """Decide about tools, for whoever may; without a name, what waits."""
        decided = []
        for name in names:
            told = await self._approvals.calls.decide(name, asked.message, yes=yes, why=why)
            decided.append(told or _(NOTHING_WAITS, name=name))
        if decided:
            return "\n".join(decided)
        lines = await self._approvals.calls.overview(asked.message, everywhere=asked.owner)
        if asked.owner:
            return await self._approvals.overview(lines)
        return "\n".join([_("These wait for your decision:"), "", *lines]) if lines else _NOTHING

    async def _answer(self, asked: CommandContext) -> str:
        name, __, text = asked.command.argument.partition(" ")
        if not is_call(clean_name(name)):
            return _(
                "Write `!answer NAME VALUE`, with the name of the server's question. Nothing was sent to "
                "a server."
            )
        told = await self._approvals.calls.answer(clean_name(name), asked.message, text)
        return told or _(NOTHING_WAITS, name=clean_name(name))

    async def _grant(self, asked: CommandContext) -> str:
        name, *words = asked.command.argument.split() or [""]
        terms = parse_terms(words)
        if not is_call(clean_name(name)) or terms is None:
            return _("Write `!grant NAME 1h`, with the name of my question; at most a day. Nothing was done.")
        told = await self._approvals.calls.grant(clean_name(name), asked.message, terms, self._grants.now())
        return told or _(NOTHING_WAITS, name=clean_name(name))

    async def _remind(self, asked: CommandContext) -> str:
        place = place_of(asked, self._owner_addresses)
        return await about_reminders(self._schedule, place, asked, self._store.turns)

    async def _model(self, asked: CommandContext) -> str:
        """Among others the owner may choose too, but what the pools are made of is said in private alone."""
        if not asked.is_owner:
            return _("Only my owner chooses which models answer.")
        pools, here = self._models.pools(), asked.turn.session
        wanted = clean_name(asked.command.argument)
        if wanted:
            name = next((each for each in pools if each.casefold() == wanted.casefold()), None)
            if name is None and wanted.lower() == "default":
                await self._models.choose(here, "")
                return _(
                    "From your next message on, `{default}` answers here, as everywhere.",
                    default=self._models.default,
                )
            if name is not None:
                await self._models.choose(here, name)
                return _(
                    "From your next message on, `{name}` answers here. `!model default` switches back.",
                    name=name,
                )
        chosen = await self._models.chosen(here)
        now = chosen if chosen in pools else self._models.default
        lines = (
            [_("There is no pool `{wanted}`; nothing was changed.", wanted=safe_line(wanted))]
            if wanted
            else []
        )
        if chosen and chosen not in pools:
            lines.append(
                _(
                    "`{chosen}`, which was chosen here, is no longer in the settings.",
                    chosen=safe_line(chosen),
                )
            )
        lines += [_("`{now}` answers here. These pools exist:", now=now), ""]
        for name, members in pools.items():
            made_of = f": {', then '.join(map(safe_line, members))}" if asked.owner else ""
            lines.append(f"- `{name}`{made_of}{' (default)' if name == self._models.default else ''}")
        return "\n".join([*lines, "", _("`!model NAME` chooses one for this conversation.")])

    async def _trust(self, asked: CommandContext) -> str:
        if not asked.owner:
            return NOT_HERE
        what, __, name = asked.command.argument.partition(" ")
        if what.lower() == "file" and name.strip():
            return await self._trust_file(asked, name.strip().strip("`'\""))
        if asked.command.argument:
            return await self._trust_what_was_shown(asked, clean_name(asked.command.argument))
        # When it was taken: what has come in since, while it waited for its turn, the owner has not seen.
        at = min(asked.turn.head.accepted_at, self._clock.now())
        await self._store.state.write(trust_topic(asked.turn.session), at.isoformat())
        return _(
            "Everything that has come into this conversation until now counts as your own words from now "
            "on. I no longer ask you because of it."
        )

    async def _trust_file(self, asked: CommandContext, name: str) -> str:
        """The owner's word about one content of one file; what stands there later is another one."""
        receipt = EffectReceipt(
            asked.turn.session,
            "trust_file",
            Effect.PERSIST.value,
            {"path": name},
            asked_by=asked.message.sender.address,
        )
        await self._store.turns.record_step_start(asked.turn, Step(0, "command", "trust", {}, None, receipt))
        told, failed = await anyio.to_thread.run_sync(self._trusted_file, asked.turn, name)
        result = {"content": told, "is_error": failed}
        await self._store.turns.record_step_result(asked.turn, Step(0, "command", "trust", {}, result))
        return told

    def _trusted_file(self, turn: Turn, name: str) -> tuple[str, bool]:
        files = self._files()
        try:
            place = files.roots.place(name)
            found = files.read_state(place)
        except ToolError as error:
            return _("Nothing was done: {error}", error=error), True
        if found is None:
            return _("There is no file `{label}`. Nothing was done.", label=safe_line(place.label)), True
        if found.status.st_ctime > turn.head.accepted_at.timestamp():
            return (
                _(
                    "`{label}` has changed since you wrote that. Look again; nothing was done.",
                    label=safe_line(place.label),
                ),
                True,
            )
        try:
            files.journal.labels.trust(place.label, found.digest)
        except OSError:
            return _("The disk accepts no writes at the moment. Nothing was done."), True
        size = len(found.content)
        return (
            _(
                "`{label}` as it is now ({size} bytes, SHA-256 `{short_hash}`) "
                "counts as your own words from now on, until the file changes.",
                label=safe_line(place.label),
                size=size,
                short_hash=short_hash(found.digest),
            )
        ), False

    async def _trust_what_was_shown(self, asked: CommandContext, name: str) -> str:
        """Trust all content that had arrived before a question was asked: the question names that."""
        session = asked.turn.session
        for question in await self._store.approvals.questions():
            if question.name == name and question.session == session and question.at is not None:
                topic = trust_topic(session)
                known = trusted_before(await self._store.state.read(topic), self._clock.now())
                at = max(question.at, known) if known else question.at
                await self._store.state.write(topic, at.isoformat())
                shown = describe(from_json(question.origins), most=KEPT) or _("only your own words")
                return _(
                    "Everything that had come in here before I asked `{name}` counts as your own words "
                    "from now on: {shown}. The question still waits for your answer.",
                    name=name,
                    shown=shown,
                )
        return _("No question named `{name}` waits here now. Nothing was done.", name=name)

    async def _reject(self, asked: CommandContext) -> CommandReply | str:
        name, _, why = asked.command.argument.partition(" ")
        names, rest = _names_of_calls(asked.command.argument)
        if not name or names:
            return await self._about_calls(asked, names, yes=False, why=rest)
        if not asked.owner:
            return NOT_HERE
        return await self._approvals.decide(name, yes=False, why=why.strip())


def _names_of_calls(argument: str) -> tuple[list[str], str]:
    """The names of calls with which an argument begins, and the rest."""
    words = argument.replace(",", " ").split()
    names = list(takewhile(is_call, map(clean_name, words)))
    return names, argument if not names else " ".join(argument.split()[len(names) :])
