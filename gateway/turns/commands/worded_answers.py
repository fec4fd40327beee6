"""
Answers in words to questions that wait: a yes, a no, or a value. It is decided in the transaction that
accepts a message, so that a message is for good an answer or for the model. A reply answers only what it
replies to. Another word answers the only question open here for this person, if no model spoke since and the
two cannot have crossed. A yes or no with more words is asked back; further paragraphs are the reason of a no,
and below a yes a message like any other. Anything else leaves questions open, except a server's, which is
withdrawn, as its call blocks the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import dropwhile, takewhile
from typing import Any

from agent_core.language import _, gettext_noop, speaking
from agent_core.memory.scopes import person_name
from agent_core.messages import Audience, InboundMessage, MessageNotes, OutboundKind
from gateway.routing.access import Role
from gateway.store.model import APPROVED, WITHDRAWN, JobKind, OutboxRow, Question
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Pending, Step, Turn
from gateway.turns.commands.command_parsing import without_name
from gateway.turns.commands.written_answer import own_lines, read_written_answer
from gateway.turns.questions.decisions import (
    ENDED,
    Decision,
    Unfit,
    granted_text,
    has_ended,
    is_call,
    outcome,
    place_of,
    question_subject,
)
from gateway.turns.questions.questions import NOTHING_WAITS, Questions
from gateway.turns.questions.tool_grants import parse_terms
from gateway.turns.questions.yes_and_no import (
    AnswerReading,
    Sign,
    is_cancellation,
    is_question,
    is_stop_word,
    read_answer,
    yes_or_no,
)

_CROSSED = timedelta(seconds=5)
_REPEATED = timedelta(seconds=2)
"""An answer to what was asked back that comes sooner may be the one before, sent twice."""
_STILL_BUSY = gettext_noop("I am still working on what you wrote before. `!stop` ends that.")
_SPOKEN = -1_000_000
"""The number of the step that is a decision by voice; those of transcripts are greater."""


def recorded_reply(message: InboundMessage) -> str | None:
    """The reply to a message that was an answer, or that its channel refuses in words; else None."""
    if message.context.refusal:
        return message.context.refusal
    return None if message.notes.more else answer_note(message)


def answer_note(message: InboundMessage) -> str | None:
    """The sentences about what a message has decided; None: it is no answer."""
    notes = message.notes
    if not notes.answers:
        return None
    if notes.misread:
        return notes.misread
    if notes.settled:
        verdicts = zip(sorted(notes.answers.items()), notes.settled.split(","), strict=True)
        outcomes = "\n".join(outcome(name, tool, verdict) for (name, tool), verdict in verdicts)
        return f"{outcomes}{notes.granted if notes.settled == APPROVED else ''}"
    lines = [f"- `{name}`" + (f": {subject}" if subject else "") for name, subject in notes.answers.items()]
    told = _(
        "{n} questions wait for you, and I have decided nothing. Write `yes to all` or `no to all`, reply "
        "to one of them, or write `!approve {name}` or `!reject {name}`:",
        n=len(lines),
        name=next(iter(notes.answers)),
    )
    return "\n".join([told, *lines])


@dataclass(eq=False, kw_only=True)
class WordedAnswers:
    """
    Finds answers to questions in batches before they are accepted, for all channels.

    In ``email_style`` channels only first lines of replies count.
    """

    questions: Questions
    email_style: frozenset[str]

    async def settle_answers(self, batch: Sequence[Pending]) -> list[Pending]:
        """The same batch, with the decisions that its messages make. Raises `StoreUnavailable`."""
        if not any(map(_may_decide, batch)):
            return list(batch)
        waiting, settled = await self.questions.calls(), list[Pending]()
        for entry in batch:
            rules = self.questions.access.rules(entry.message)
            with speaking("" if rules is None else rules.language):
                settled.append(await self._read(entry, waiting).settle() if _may_decide(entry) else entry)
        return settled

    def _read(self, entry: Pending, waiting: Sequence[Question]) -> _WordedAnswer:
        by_mail = entry.message.channel in self.email_style
        return _WordedAnswer(self.questions, entry, waiting, by_mail=by_mail)

    async def spoken(self, turn: Turn, steps: Sequence[Step]) -> str | None:
        """
        Return the reply to a spoken yes or no to an earlier question; None: it goes to the model.

        The decision is recorded as a step first, so that each start agrees. Words that only acknowledge do
        not count: programs hear such words in noise. Raises `LostTurn` or `StoreUnavailable`.
        """
        noted: Mapping[str, Any] | str | None
        noted = next((step.request for step in steps if step.number == _SPOKEN), None)
        noted = await self._decided_by_voice(turn, steps) if noted is None else noted
        if noted is None or isinstance(noted, str):
            return noted
        name, tool = str(noted["name"]), str(noted["tool"])
        store = self.questions.store.approvals
        known = await store.decide(name, noted["verdict"]) or await store.find_decision(name)
        return outcome(name, tool, known.verdict if known else "")

    async def _decided_by_voice(self, turn: Turn, steps: Sequence[Step]) -> Mapping[str, Any] | str | None:
        """Return the record of a decision by voice, or a reply without one; None: it is neither."""
        message, heard = turn.head.message, turn.head.message.notes.heard
        is_alone = len(turn.rows) == 1 and len(heard) == 1 and not message.text.strip()
        is_new = message.notes.known_words is None and not any(step.number >= 0 for step in steps)
        is_own = message.context.spoken and not message.context.others_words
        if not (is_alone and is_new and is_own) or heard[0].unsure:
            return None
        said = read_answer(heard[0].text)
        if said is None or said.sign not in (Sign.YES, Sign.NO) or said.span:
            return None
        calls, before = await self.questions.calls(), turn.head.accepted_at
        waiting = [one for one in calls if one.form is None and one.at and one.at < before]
        session = None if turn.session == message.session else turn.session
        answer = await self._read(Pending(message, session=session), waiting).answer(said)
        if answer is None or not answer.settles:
            return None if answer is None else recorded_reply(answer.message)
        ((name, verdict),) = answer.settles.items()
        noted = {"name": name, "tool": answer.message.notes.answers[name], "verdict": verdict}
        await self.questions.store.turns.record_step_result(turn, Step(_SPOKEN, "spoken", name, noted, {}))
        return noted


class _WordedAnswer:
    """One message, and what it answers of the questions that wait."""

    def __init__(
        self, questions: Questions, entry: Pending, waiting: Sequence[Question], *, by_mail: bool
    ) -> None:
        self.questions, self.store, self.waiting, self.by_mail = questions, questions.store, waiting, by_mail
        self.entry, self.message = entry, entry.message
        self.mine = [one for one in waiting if questions.may_decide(one, self.message)]
        self.here = [one for one in self.mine if _is_here(one, entry)]
        self.is_reply = bool(self.message.context.in_reply_to or self.message.context.outbound)
        """A reply to any message decides nothing but that."""
        self.is_direct = self.message.audience is Audience.DIRECT
        self.is_bare = self.is_direct and not by_mail and not self.is_reply
        self.is_owner = questions.access.decide(self.message).role is Role.OWNER

    async def settle(self) -> Pending:
        """The message with its decision; one that is no answer withdraws what a server asks its sender."""
        answer = await self._filled_in() or await self._called_off()
        said = read_written_answer(self.message, by_mail=self.by_mail) if answer is None else None
        if said is not None:
            answer = await self._answer_all(said) or await self.answer(said) or await self._review(said)
        if answer is not None:
            return answer
        told = {"verdict": WITHDRAWN, "by": self.message.sender.address}
        forms = [one for one in self.mine if one.form is not None and _is_own(one, self.entry)]
        return replace(self.entry, settles={one.name: told for one in forms})

    async def _rows(self) -> list[OutboxRow]:
        return await self.store.approvals.newest_rows(self.message.session)

    async def _replied(self) -> OutboxRow | None:
        """The message of ours in this conversation to which this is a reply."""
        key = self.message.context.outbound
        row = await self.store.outbox.find_by_key(key) if key else None
        same = row is not None and place_of(row.message.session) == place_of(self.message.session)
        return row if same else None

    async def _review(self, said: AnswerReading) -> Pending | None:
        """
        Take the owner's direct yes or no as a reply to the notice of a draft or a kept message above.

        None: no such notice is the last that was asked. The reply is decided by `Questions`.
        """
        message = self.message
        if not self.is_bare or said.sign is Sign.UNCLEAR or said.span or said.more:
            return None
        if not self.is_owner or self.here:
            return None
        rows = await self._rows()
        later = list(takewhile(lambda row: _is_mere_notice(row) and not row.message.notes.approves, rows))
        notice = next(iter(rows[len(later) :]), None)
        names = notice.message.notes.approves if notice is not None else ()
        if notice is None or notice.state is OutboxState.PENDING or not names or any(map(is_call, names)):
            return None
        if not any([await self.questions.is_open(name) for name in names]):
            return None
        is_late = message.received_at - notice.message.created_at >= _CROSSED
        near = [row.message for row in rows[: len(later) + 2]]
        is_wanted = any(one.notes.is_command and f"`{names[0]}`" in one.text for one in near)
        is_clear = (is_late or is_wanted) and not (later and said.sign is Sign.FINE)
        if not is_clear or await self._is_answering():
            asked = _(
                "Is that a yes or a no to `{join}`? It still waits. Reply to this message "
                "with `yes` or `no`, or write `!approve` or `!reject` with its name.",
                join="`, `".join(names),
            )
            entry = _deciding_nothing(self.entry, dict.fromkeys(names, ""), asked)
            return _noting(entry, replace(entry.message.notes, approves=names))
        context = replace(message.context, outbound=notice.message.id)
        return replace(self.entry, message=message.with_context(context))

    async def _called_off(self) -> Pending | None:
        """
        Make a "stop" that would wait for what it is about the command; other such words are told of it.

        None for anything else.
        """
        text = self.message.text
        if not self.is_bare or self.message.attachments or not is_cancellation(text):
            return None
        if not await self._is_answering():
            return None
        if is_stop_word(text):
            return self._as_command("!stop")
        return _deciding_nothing(self.entry, {"": ""}, _(_STILL_BUSY))

    def _as_command(self, text: str) -> Pending:
        return replace(self.entry, message=self.message.model_copy(update={"text": text}), alone=True)

    async def _answer_all(self, said: AnswerReading) -> Pending | None:
        """
        Make a yes or no to all the command that names all that waits here; None: fewer than two do.

        It is asked back if a model spoke (for a no: asked) since the last of them, or one may have come while
        it was written. A reply is to what its message names; one that is not to all is asked back, too, and
        one to all in reply to a question about one call, while others wait. What stands below a yes goes to
        the model.
        """
        rows = await self._rows_meant(said)
        named = [name for row in rows for name in row.message.notes.approves or row.message.notes.answers]
        is_of_one = said.to_all and any([one.name] == named and len(one.calls) < 2 for one in self.here)
        is_short = is_of_one and self.is_reply
        if rows and (is_short or not self.is_reply):
            named += [one.name for one in self.here]
        about = {one.name: question_subject(one, details=True) for one in self.mine if one.name in named}
        has_calls = bool(about)
        if self.is_direct and self.is_owner:
            items = [name for name in dict.fromkeys(named) if name and not is_call(name)]
            about |= {name: "" for name in items if await self.questions.is_open(name)}
        if len(about) < 2 or not (has_calls or said.to_all):
            return None
        is_read = all(
            row.state is not OutboxState.PENDING
            and self.message.received_at - row.message.created_at >= _CROSSED
            for row in rows
            if not about.keys().isdisjoint(row.message.notes.approves)
        )
        is_no, is_decision = said.sign is Sign.NO, said.to_all and not said.span and not is_short
        calls = [one for one in self.mine if one.name in about and one.form is None]
        goes_on = bool(said.more) and not is_no
        is_decision = is_decision and is_read and not (goes_on and len(calls) < len(about))
        if not is_decision or await self._is_answering():
            return _answering(self.entry, about)
        if goes_on:
            yes = {one.name: self.questions.verdict(one, Decision(), self.message)[0] for one in calls}
            answer = _answering(self.entry, {one.name: one.tool for one in calls})
            return self._with_more(replace(answer, settles=yes), said.more)
        words = ["!reject" if is_no else "!approve", ",".join(about), *said.more.split()]
        return self._as_command(" ".join(words))

    async def _rows_meant(self, said: AnswerReading) -> Sequence[OutboxRow]:
        """The message that a reply is to; for a word to all what was said here, if a question is the last."""
        if self.is_reply:
            row = await self._replied()
            return [] if row is None else [row]
        is_no = said.sign is Sign.NO
        return await self._rows_since_asked(is_no=is_no) if said.to_all and not self.by_mail else []

    async def _rows_since_asked(self, *, is_no: bool = False) -> Sequence[OutboxRow]:
        """Return what was said here, newest first, if what followed the last question needs no yes or no."""

        def is_between(row: OutboxRow) -> bool:
            is_passed = is_no and row.state is not OutboxState.PENDING and not is_question(row.message.text)
            return (is_passed or _is_mere_notice(row)) and not _asks_about(row)

        rows = list(dropwhile(is_between, await self._rows()))
        return rows if rows and _asks_about(rows[0]) else []

    async def _filled_in(self) -> Pending | None:
        """Return the answer to a server: a reply to it, or hardly anything else is meant; else None."""
        if not any(one.form is not None for one in self.mine):
            return None
        names, message = _names(await self._replied()), self.message
        text = own_lines(message.text) if self.by_mail else without_name(message.text, message)
        for one in self.mine:
            if one.form is not None and names == [one.name]:
                return self._as_form(one, text)
        if self.is_reply or self.by_mail or len(self.here) != 1 or self.here[0].form is None:
            return None
        (question,), last = self.here, next(iter(await self._rows()), None)
        if not _is_of(last, question) or _may_cross(question, self.entry):
            return None
        is_no = yes_or_no(text) is False
        if self.here[0].form.is_closed and len(text) <= 300:
            answer = self._as_form(question, text)
            return None if answer.message.notes.misread and yes_or_no(text) is None else answer
        return self._as_form(question, text) if is_no or self.here[0].form.is_named_in(text) else None

    def _as_form(self, question: Question, text: str) -> Pending:
        """A text as the answer to a server's question; a plain no that fills in nothing declines it."""
        is_no = yes_or_no(text) is False
        if is_no and _takes_text(question):
            return self._settling(question, Decision(yes=False))
        answer = self._settling(question, Decision(text=text))
        return self._settling(question, Decision(yes=False)) if is_no and not answer.settles else answer

    def _settling(self, question: Question, said: Decision) -> Pending:
        """The message as this decision; one that does not fit the question decides nothing and is told so."""
        if has_ended(question, self.questions.waiting):
            return _misread(self.entry, question, outcome(question.name, question.tool, ENDED))
        try:
            verdict, grant = self.questions.verdict(question, said, self.message)
        except Unfit as error:
            return _misread(self.entry, question, str(error))
        answer = _answering(self.entry, {question.name: question.tool})
        answer = replace(answer, settles={question.name: verdict})
        if grant is None:
            return answer
        notes = replace(answer.message.notes, granted=granted_text(grant))
        return replace(_noting(answer, notes), grants={question.name: grant})

    async def answer(self, said: AnswerReading) -> Pending | None:
        """A yes or no as an answer to one question, or to some that it may be about; None: it is neither."""
        here, is_sure = self.here, said.sign in (Sign.YES, Sign.NO)
        if self.is_reply or self.by_mail:
            return await self._reply(said)
        if not here:
            return None
        rows = await self._rows()
        asked = _names(rows[0]) if rows and rows[0].state is not OutboxState.PENDING else []
        if len(here) > 1 and not said.to_all:
            here = await self._newest_question(asked) or here
        if len(here) > 1:
            is_meant = is_sure and any(_is_own(one, self.entry) for one in here)
            about = {one.name: question_subject(one, details=True) for one in here}
            return _answering(self.entry, about) if is_meant or await self._rows_since_asked() else None
        (question,) = here
        later = list(takewhile(lambda row: question.name not in _names(row), rows))
        notice = next(iter(rows[len(later) :]), None)
        by_model = not all(map(_is_mere_notice, later)) or await self._is_answering(question)
        if by_model or not _is_of(notice, question):
            return _asked_back(self.entry, question) if is_sure and _is_own(question, self.entry) else None
        if _may_cross(question, self.entry, notice) or (later and said.sign is Sign.FINE):
            return _asked_back(self.entry, question)
        return self._decided(question, await self._with_earlier(said, question))

    async def _newest_question(self, asked: Sequence[str]) -> list[Question]:
        """Return the question just above, if its wish came after the others were left open; else none."""
        newest = next((one for one in self.here if [one.name] == asked), None)
        if newest is None or not _is_own(newest, self.entry) or newest.at is None or newest.form is not None:
            return []
        rows = await self.store.inbox.rows(states=[InboxState.READY], session=self.entry.conversation)
        wished = [row.message.received_at for row in rows if row.turn == newest.turn]
        others = [one.at for one in self.here if one is not newest]
        is_later = wished and all(at is not None and at + _CROSSED <= min(wished) for at in others)
        return [newest] if is_later and self.message.received_at - newest.at >= _CROSSED else []

    async def _with_earlier(self, said: AnswerReading, question: Question) -> AnswerReading:
        """Add the sender's words beside earlier signs that were asked back about, with nothing said since."""
        message, words = self.message, [said.more]
        if said.sign is Sign.UNCLEAR:
            return said
        for row in takewhile(
            lambda each: each.message.notes.answers and _names(each) == [question.name], await self._rows()
        ):
            kept = None if row.inbox_id is None else await self.store.inbox.row(row.inbox_id)
            before = message if kept is None else kept[0].message
            is_same = before.sender.address == message.sender.address and not before.notes.redacted
            if before is message or not is_same or before.context.others_words:
                continue
            earlier = read_written_answer(before, by_mail=self.by_mail)
            if earlier is not None and earlier.sign is Sign.UNCLEAR:
                words.insert(0, earlier.more)
        return replace(said, more="\n\n".join(filter(None, words)))

    async def _is_answering(self, question: Question | None = None) -> bool:
        """Return True if a model is answering another message here, whose answer may come first."""
        running = await self.store.inbox.rows(states=[InboxState.RUNNING], session=self.entry.conversation)
        return any(
            row.message.native_id != self.message.native_id
            and (question is None or row.turn != question.turn)
            and row.message.kind == "message"
            and recorded_reply(row.message) is None
            for row in running
        )

    async def _reply(self, said: AnswerReading) -> Pending | None:
        """An answer in reply to the notice of a question; None: it is none."""
        names = _names(await self._replied())
        if len(names) != 1:
            return None
        found = next((one for one in self.waiting if one.name == names[0]), None)
        if found in self.mine:
            return self._decided(found, await self._with_earlier(said, found))
        if found is not None and (doubt := self.questions.weak_proof_reply(found, self.message)):
            return _misread(self.entry, found, doubt)
        told = await self.questions.explain_decision(names[0], self.message)
        if told is None and said.sign is not Sign.UNCLEAR:
            if found is not None:
                told = self.questions.deciders_text(found)
            elif self.is_direct:
                told = _(NOTHING_WAITS, name=names[0])
        if told is None:
            return None
        return self._with_more(_deciding_nothing(self.entry, {names[0]: ""}, told), said.more)

    def _decided(self, question: Question, said: AnswerReading) -> Pending | None:
        """Return the decision of a sign, or a reply to an unclear one; None: it answers no question."""
        yes, form = said.sign is not Sign.NO, question.form
        if said.sign is Sign.UNCLEAR or (said.span and form is not None):
            return _asked_back(self.entry, question) if form is None or form.is_closed else None
        if form is not None and yes and not form.is_closed:
            return self._settling(question, Decision())  # which fits nothing, and is told so
        if form is not None:
            return self._with_more(self._as_form(question, "yes" if yes else "no"), said.more)
        terms = parse_terms([said.span]) if said.span else None
        if said.span and terms is None:
            return _misread(self.entry, question, _("A grant holds for a day at most. Nothing was done."))
        answer = self._settling(question, Decision(yes, "" if yes else said.more, terms=terms))
        # Of a long reason the verdict has the beginning.
        is_all = not answer.settles or answer.settles[question.name]["why"] == " ".join(said.more.split())
        return answer if is_all else self._with_more(answer, said.more)

    def _with_more(self, answer: Pending, more: str) -> Pending:
        """The same decision in a message that goes to the model, with what was written below the sign."""
        if not more:
            return answer
        message = answer.message.model_copy(update={"text": more})
        if self.by_mail:
            # It may be a signature, which nobody can tell from words and which needs no answer.
            message = message.with_context(replace(message.context, not_named=True))
        return _noting(replace(answer, message=message, alone=False), replace(message.notes, more=True))


def _misread(entry: Pending, question: Question, said: str) -> Pending:
    """The message as an answer that decides nothing; what is said of the question can be answered, too."""
    entry = replace(_deciding_nothing(entry, {question.name: question.tool}, said), settles={})
    return _noting(entry, replace(entry.message.notes, approves=(question.name,)))


def _asked_back(entry: Pending, question: Question) -> Pending:
    return _misread(
        entry,
        question,
        _(
            "Is that a yes or a no to `{name}` ({question_subject})? It still waits. "
            "Reply to this message with `yes` or `no`, or write "
            "`!approve {name}` or `!reject {name}`.",
            name=question.name,
            question_subject=question_subject(question),
        ),
    )


def _deciding_nothing(entry: Pending, about: Mapping[str, str], said: str) -> Pending:
    entry = _answering(entry, about)
    return _noting(entry, replace(entry.message.notes, misread=said))


def _takes_text(question: Question) -> bool:
    """Return True if a "no" would be taken as the text of a single field."""
    fields = question.form.fields if question.form else ()
    return len(fields) == 1 and fields[0].kind == "text"


def _may_decide(entry: Pending) -> bool:
    message = entry.message
    free = entry.ignore is None and entry.quarantine is None and not entry.alone
    return free and message.kind == "message" and not message.context.read_only


def _is_here(question: Question, entry: Pending) -> bool:
    """Return True if a question is open in a message's conversation, or was asked where that was said."""
    return question.session == entry.conversation or entry.message.session in question.places


def _is_own(question: Question, entry: Pending) -> bool:
    """Return True if a question is about a request of the sender in this conversation."""
    people = set(map(person_name, question.people))
    mine = person_name(entry.message.sender.address) in people or entry.session is not None
    return question.session == entry.conversation and mine


def _may_cross(question: Question, entry: Pending, notice: OutboxRow | None = None) -> bool:
    """
    Return True if the sender may not have read a question before writing the message.

    That is possible with a question of somebody else, one that followed another of the same turn, and one
    that was asked again.
    """
    at, message = question.at, entry.message
    if notice is not None and notice.message.notes.answers:
        return message.received_at - notice.message.created_at < _REPEATED
    if not question.further:
        wanted_it = person_name(message.sender.address) in map(person_name, question.people)
        at = None if wanted_it or _is_own(question, entry) else at
    return at is not None and message.received_at - at < _CROSSED


def _is_of(row: OutboxRow | None, question: Question) -> bool:
    """Return True if a row is the notice of a question and may have been read."""
    return row is not None and row.state is not OutboxState.PENDING and _names(row) == [question.name]


def _is_mere_notice(row: OutboxRow) -> bool:
    """Return True if a row asks nothing and is no model's: notices, answers to commands, reminders."""
    message, job = row.message, row.message.notes.job
    is_reminder = job is not None and job.kind == JobKind.REMIND
    is_outcome = message.notes.is_command or (bool(message.notes.answers) and not message.notes.more)
    is_ours = message.kind in (OutboundKind.NOTICE, OutboundKind.APOLOGY) or is_outcome
    return (is_ours or is_reminder) and not is_question(message.text)


def _asks_about(row: OutboxRow) -> bool:
    """Return True for a question, and for a list of several that wait."""
    notes = row.message.notes
    return bool(notes.approves) or (len(notes.answers) > 1 and not notes.settled)


def _names(row: OutboxRow | None) -> list[str]:
    """The calls that a notice is about."""
    found = () if row is None else row.message.notes.approves
    return list(found) if all(map(is_call, found)) else []


def _answering(entry: Pending, about: Mapping[str, str]) -> Pending:
    """The message as an answer, which is a turn of its own and reaches no model."""
    return _noting(replace(entry, alone=True), replace(entry.message.notes, answers=dict(about)))


def _noting(entry: Pending, notes: MessageNotes) -> Pending:
    return replace(entry, message=entry.message.with_notes(notes))
