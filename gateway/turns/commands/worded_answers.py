"""
Answers in words to questions that wait: a yes, a no, a value, or something else that withdraws the question.

It is decided when a message is accepted, and noted with it in one transaction. So an answer and what is
written after it never change places, and a message is either an answer, or goes to the model, for good.

A word is an answer in reply to the question. Otherwise it must be about the last thing that was said in the
conversation: the only question that waits there for this person. A word that could be about another thing
decides nothing; so does one that comes so soon after a question that the two may have crossed: one to which
somebody else has led, or one that follows another of the same turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Any

from agent_core.memory.scopes import spelled
from agent_core.messages import InboundMessage
from agent_core.tools.forms import NotAnAnswer, form_of
from gateway.queue.model import WITHDRAWN, Question
from gateway.queue.states import OutboxState
from gateway.queue.stores import ApprovalStore, OutboxStore, Pending
from gateway.routing.access import Access, Role
from gateway.turns.approvals.tool_decisions import (
    DECLINED,
    ENDED,
    ToolDecisions,
    decision,
    filled_in,
    is_call,
    outcome,
    place_of,
)
from gateway.turns.commands.parsing import without_name

_YES = frozenset({"yes", "y", "ok", "okay", "approve", "approved", "👍", "✅", "👌", "✔", "☑", "🆗"})
_NO = frozenset({"no", "n", "reject", "rejected", "👎", "❌", "✖", "🚫", "⛔"})
_LONGEST = 40
_CROSSED = timedelta(seconds=5)
_LONGEST_VALUE = 300
_SKIN_TONES = dict.fromkeys(range(0x1F3FB, 0x1F400))


def yes_or_no(text: str) -> bool | None:
    """The yes or no that a text is; None if it is anything else."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    word = text.translate(_SKIN_TONES).replace("\ufe0f", "").strip().strip(".!/,").strip().casefold()
    return True if word in _YES else False if word in _NO else None


def said_of_answer(message: InboundMessage) -> str | None:
    """The reply to a message that was an answer; None for any other."""
    noted = message.context.get("answers")
    if not isinstance(noted, dict):
        return None
    if "misread" in message.context:
        return str(message.context["misread"])
    names = [str(name) for name in noted]
    if len(names) == 1 and "settled" in message.context:
        return outcome(names[0], str(noted[names[0]]), message.context["settled"])
    lines = [f"- `{name}`: to use `{tool}`" for name, tool in noted.items()]
    how = "Answer the question itself, or write `!approve` or `!reject` with its name"
    return "\n".join([f"I cannot tell which question you mean, so I have decided nothing. {how}:", *lines])


@dataclass(eq=False)
class WordedAnswers:
    """
    Finds answers to questions in batches of messages before they are accepted. One instance serves all
    channels.

    Args:
        email_style: The channels in which only the first line of a reply to the question counts.
    """

    store: ApprovalStore
    outbox: OutboxStore
    _: KW_ONLY
    calls: ToolDecisions
    access: Access
    email_style: frozenset[str]

    async def hear(self, batch: Sequence[Pending]) -> list[Pending]:
        """The same batch, with the decisions that its messages make. Raises `StoreUnavailable`."""
        if not any(map(_may_be_heard, batch)):
            return list(batch)
        waiting = [one for one in await self.store.questions() if one.verdict is None]
        return [await self._heard(each, waiting) if _may_be_heard(each) else each for each in batch]

    async def _heard(self, entry: Pending, waiting: Sequence[Question]) -> Pending:
        message = entry.message
        mine = [one for one in waiting if self.calls.may_decide(one, message)]
        filled = await self._filled_in(entry, mine)
        if filled is not None:
            return filled
        yes = self._word(message)
        if yes is not None:
            answer = await self._answer(entry, mine, waiting, yes=yes)
            if answer is not None:
                return answer
        told = {"verdict": WITHDRAWN, "by": message.sender.address}
        return replace(entry, settles={one.name: told for one in mine if _is_own(one, entry)})

    def _word(self, message: InboundMessage) -> bool | None:
        text = message.text
        if message.channel in self.email_style:
            return yes_or_no(text.lstrip().partition("\n")[0])
        return yes_or_no(without_name(text.strip(), message))

    async def _filled_in(self, entry: Pending, mine: Sequence[Question]) -> Pending | None:
        """
        An answer to what a server wants to know: in reply to the question, whatever it says, or else only if
        hardly anything else could be meant; None: it is none.
        """
        message = entry.message
        here = [one for one in mine if _is_here(one, entry)]
        if not any(one.form is not None for one in mine):
            return None
        key = message.context.get("outbound")
        names = _names(await self.outbox.by_key(str(key)), message) if key else []
        by_mail = message.channel in self.email_style
        text = _own_lines(message.text) if by_mail else without_name(message.text, message)
        for one in mine:
            if one.form is not None and names == [one.name]:
                return self._as_form(entry, one, text)
        if _is_reply(message) or by_mail or len(here) != 1 or here[0].form is None:
            return None
        last = await self.store.newest_said(message.session)
        seen = last is not None and last.state is not OutboxState.PENDING
        if not seen or _names(last, message) != [here[0].name] or _may_cross(here[0], entry):
            return None
        if form_of(here[0].form).is_closed and len(text) <= _LONGEST_VALUE:
            answer = self._as_form(entry, here[0], text)
            return None if "misread" in answer.message.context and yes_or_no(text) is None else answer
        return self._as_form(entry, here[0], text) if yes_or_no(text) is False else None

    def _as_form(self, entry: Pending, question: Question, text: str) -> Pending:
        """A text as the answer to a server's question; a plain no that fills in nothing declines it."""
        if self.calls.has_ended(question):
            return _misread(entry, question, outcome(question.name, question.tool, ENDED))
        message, about = entry.message, {question.name: question.tool}
        owner = self.access.decide(message).role is Role.OWNER
        told: dict[str, Any]
        try:
            told = filled_in(question, text, by=message.sender.address, owner=owner)
            if yes_or_no(text) is False and _takes_text(question):
                told = {}
        except NotAnAnswer as error:
            told = {}
            if yes_or_no(text) is not False:
                return _misread(entry, question, _not_fitting(question, str(error)))
        if not told:
            told = {**decision(yes=False, by=message.sender.address, owner=owner), "verdict": DECLINED}
        return replace(_answering(entry, about), settles={question.name: told})

    async def _answer(
        self, entry: Pending, mine: Sequence[Question], waiting: Sequence[Question], *, yes: bool
    ) -> Pending | None:
        """A yes or no as an answer to one question, or to some that it may be about; None: it is neither."""
        replied = await self._reply(entry, mine, waiting, yes=yes)
        message = entry.message
        here = [one for one in mine if _is_here(one, entry)]
        if replied is not None or not here or _is_reply(message) or message.channel in self.email_style:
            return replied
        last = await self.store.newest_said(message.session)
        seen = last is not None and last.state is not OutboxState.PENDING
        asked = _names(last, message) if seen else []
        if len(here) == 1 and asked == [here[0].name] and not _may_cross(here[0], entry):
            return self._decided(entry, here[0], yes=yes)
        if asked or any(_is_own(one, entry) for one in here):
            return _answering(entry, {one.name: one.tool for one in here})
        return None

    async def _reply(
        self, entry: Pending, mine: Sequence[Question], waiting: Sequence[Question], *, yes: bool
    ) -> Pending | None:
        """An answer in reply to the notice of a question; None: it is none."""
        key = entry.message.context.get("outbound")
        names = _names(await self.outbox.by_key(str(key)), entry.message) if key else []
        if len(names) != 1:
            return None
        if found := [one for one in mine if one.name == names[0]]:
            return self._decided(entry, found[0], yes=yes)
        for one in waiting:
            if one.name == names[0] and (doubt := self.calls.doubted(one, entry.message)):
                return _misread(entry, one, doubt)
        if (told := await self.calls.late(names[0], entry.message)) is not None:
            return _deciding_nothing(entry, {names[0]: ""}, told)
        return None

    def _decided(self, entry: Pending, question: Question, *, yes: bool) -> Pending:
        message = entry.message
        if question.form is not None:
            if yes and not self.calls.has_ended(question) and not form_of(question.form).is_closed:
                return _misread(
                    entry,
                    question,
                    _not_fitting(question, f"Write `!answer {question.name} …`, or reply to the question."),
                )
            return self._as_form(entry, question, "yes" if yes else "no")
        owner = self.access.decide(message).role is Role.OWNER
        told = decision(yes=yes, by=message.sender.address, owner=owner)
        return replace(_answering(entry, {question.name: question.tool}), settles={question.name: told})


def _own_lines(text: str) -> str:
    """The first lines of a mail, up to a blank one or a quotation."""
    lines = []
    for one in text.strip().split("\n"):
        if not one.strip() or one.startswith(">"):
            break
        lines.append(one)
    return "\n".join(lines)


def _not_fitting(question: Question, why: str) -> str:
    return f"That does not answer `{question.name}`, so I send nothing to the server. {why}"


def _misread(entry: Pending, question: Question, said: str) -> Pending:
    """The message as an answer that decides nothing."""
    return _deciding_nothing(entry, {question.name: question.tool}, said)


def _deciding_nothing(entry: Pending, about: Mapping[str, str], said: str) -> Pending:
    entry = _answering(entry, about)
    context = {**entry.message.context, "misread": said}
    return replace(entry, message=entry.message.model_copy(update={"context": context}))


def _takes_text(question: Question) -> bool:
    """Whether a no would be taken for the text of a single field."""
    fields = form_of(question.form).fields
    return len(fields) == 1 and fields[0].kind == "text"


def _may_be_heard(entry: Pending) -> bool:
    message = entry.message
    free = entry.ignore is None and entry.quarantine is None and not entry.alone
    return free and message.kind == "message" and not message.context.get("read_only")


def _is_reply(message: InboundMessage) -> bool:
    """Whether a message answers another one, whoever wrote that: it decides nothing else."""
    return bool(message.context.get("in_reply_to") or message.context.get("outbound"))


def _is_here(question: Question, entry: Pending) -> bool:
    """Whether a question waits in the conversation of a message, or was asked where that was said."""
    return question.session == entry.conversation or entry.message.session in question.places


def _is_own(question: Question, entry: Pending) -> bool:
    """Whether a question is about what the sender has wanted in this conversation."""
    people = set(map(spelled, question.people))
    mine = spelled(entry.message.sender.address) in people or entry.session is not None
    return question.session == entry.conversation and mine


def _may_cross(question: Question, entry: Pending) -> bool:
    """
    Whether the sender may not have read a question before the message was written: one of somebody else, or
    one that followed another of the same turn, to which a second yes may have been.
    """
    wanted_it = spelled(entry.message.sender.address) in map(spelled, question.people)
    if question.at is None or (not question.further and (wanted_it or _is_own(question, entry))):
        return False
    return entry.message.received_at - question.at < _CROSSED


def _names(row: Any, message: InboundMessage) -> list[str]:
    """The calls that a notice in this place is about."""
    if row is None or place_of(row.message.session) != place_of(message.session):
        return []
    names = row.message.context.get("approves")
    found = [str(name) for name in names] if isinstance(names, list | tuple) else []
    return found if all(map(is_call, found)) else []


def _answering(entry: Pending, about: Mapping[str, str]) -> Pending:
    """The message as an answer, which is a turn of its own and reaches no model."""
    context = {**entry.message.context, "answers": dict(about)}
    return replace(entry, message=entry.message.model_copy(update={"context": context}), alone=True)
