"""
Decisions about tool calls that wait for an approval: who may approve one, and what they are told. A call has
a name such as ``a3f2c9``. The owner may decide about it. So may whoever asked for what the turn does, with
two exceptions: where the owner has spoken in the turn, too, and where a guest's call reaches beyond their own
conversation (`gateway.turns.questions.tool_questions` asks the owner alone then). For anybody else nothing is
done, and nothing is said. A message decides only if it proves its sender at least as well as those that led
to the question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from agent_core.language import _, gettext_noop, list_of
from agent_core.memory.scopes import person_name
from agent_core.messages import Audience, InboundMessage, SessionKey
from agent_core.models import ToolCall
from agent_core.provenance import from_json
from agent_core.tools.forms import NotAnAnswer, form_of, read
from agent_core.tools.grants import Grant, GrantKind, Scope, describe_scope
from gateway.routing.access import Access, Role, is_admitted
from gateway.store.model import APPROVED, DELETED, EDITED, EXPIRED, LEFT, STOPPED, WITHDRAWN, ToolQuestionRow
from gateway.store.shared import SHARED
from gateway.store.stores import QuestionStore
from gateway.turns.questions.question_text import safe_line
from gateway.turns.questions.second_owners import may_decide_for

REFUSED = "refused"
ANSWERED, DECLINED, ENDED = "answered", "declined", "ended"
"""Of questions that servers ask during a call."""
_SAID = {
    APPROVED: gettext_noop("is approved: I use `{tool}`."),
    REFUSED: gettext_noop("is rejected: I do not use `{tool}`."),
    WITHDRAWN: gettext_noop("was withdrawn, because something else was written instead; I do not do it."),
    EDITED: gettext_noop("was withdrawn, because the request was edited; I do not do it."),
    DELETED: gettext_noop("was withdrawn, because the request was deleted; I do not do it."),
    STOPPED: gettext_noop("was withdrawn, because the request was stopped; I do not do it."),
    LEFT: gettext_noop("was withdrawn, because I am no longer in that conversation; I do not do it."),
    EXPIRED: gettext_noop(
        "waited too long, so I went on without `{tool}`. If you still want it, write `try again`: I ask "
        "once more."
    ),
    ANSWERED: gettext_noop("is answered: I send the answer to `{tool}`, if its call still waits."),
    DECLINED: gettext_noop("is declined, and I tell `{tool}` so."),
    ENDED: gettext_noop(
        "is closed: the call of `{tool}` that asked this has ended, and I send nothing. It may be unknown "
        "whether the call was carried out; ask me."
    ),
}
NOTHING_WAITS = gettext_noop("Nothing waits for you under the name `{name}` now.")
"""Of a question that is not known here, or no more."""
_BEST = 2
_LESS_SURE = gettext_noop(
    "`{name}` is not decided: this message proves its sender less well than the one that led to the "
    "question. Answer in the same way in which you wrote that one."
)
NOT_PROVED = gettext_noop(
    "This message was released by hand, and nothing proves who wrote it. So it runs no command and "
    "decides nothing; please send that in a separate message."
)
_WAS = {
    APPROVED: gettext_noop("approved"),
    REFUSED: gettext_noop("rejected"),
    ANSWERED: gettext_noop("answered"),
    DECLINED: gettext_noop("declined"),
}
_DIGITS = 6
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """The duration and the place of a grant; ``turn``: only for the turn that waits."""

    seconds: float
    turn: bool = False
    everywhere: bool = False


def name_of(digest: str, again: int = 0) -> str:
    """The short, unique name of a question about a step that was asked about ``again`` so often."""
    if again:
        digest = hashlib.sha256(f"{digest} {again}".encode()).hexdigest()
    return f"a{digest[:_DIGITS]}"


def is_call(name: str) -> bool:
    """Return True if a text can be the name of a call."""
    return len(name) == _DIGITS + 1 and name[0] == "a" and not set(name[1:]) - set("0123456789abcdef")


def clean_name(name: str) -> str:
    """A name as a person writes it."""
    return name.strip().strip("`*:.").lower()


def decision(*, yes: bool, by: str, owner: bool, why: str = "") -> dict[str, Any]:
    """The record of a decision, and whether it is the owner's."""
    return {
        "verdict": APPROVED if yes else REFUSED,
        "why": safe_line(why) if why else "",
        "by": by,
        "owner": owner,
    }


def verdict_from_answer(question: ToolQuestionRow, text: str, *, by: str, owner: bool) -> dict[str, Any]:
    """Record an answer to a server's question. Raises NotAnAnswer."""
    content = read(form_of(question.form), text)
    return {"verdict": ANSWERED, "why": "", "by": by, "owner": owner, "content": content}


class ToolDecisions:
    """Takes decisions about calls; ``waiting`` names servers' questions with a waiting call."""

    def __init__(self, store: QuestionStore, access: Access, waiting: Container[str] = ()) -> None:
        self._store = store
        self._access = access
        self._waiting = waiting

    async def decide(self, name: str, message: InboundMessage, *, yes: bool, why: str = "") -> str | None:
        """Take a decision, the first counts; return the reply or None. Raises `StoreUnavailable`."""
        question = await self._open(name, message)
        if not isinstance(question, ToolQuestionRow):
            return question
        owner = self._access.decide(message).role is Role.OWNER
        verdict: Mapping[str, Any] = decision(yes=yes, by=message.sender.address, owner=owner, why=why)
        if question.form is not None:
            if yes and form_of(question.form).fields:
                return _("`{name}` needs more than a yes: `!answer {name} …`", name=name)
            if yes:
                return await self.answer(name, message, "yes")
            verdict = {**verdict, "verdict": DECLINED}
        return await self._decided(name, message, verdict)

    async def answer(self, name: str, message: InboundMessage, text: str) -> str | None:
        """Take an answer to a server; None without such a question. Raises `StoreUnavailable`."""
        question = await self._open(name, message)
        if not isinstance(question, ToolQuestionRow):
            return question
        if question.form is None:
            return _("`{name}` needs a yes or a no: `!approve {name}` or `!reject {name}`.", name=name)
        owner = self._access.decide(message).role is Role.OWNER
        try:
            verdict = verdict_from_answer(question, text, by=message.sender.address, owner=owner)
        except NotAnAnswer as error:
            return _(
                "That does not answer `{name}`, so I send nothing to the server. {error} `!answer {name} …`",
                name=name,
                error=error,
            )
        return await self._decided(name, message, verdict)

    async def _open(self, name: str, message: InboundMessage) -> ToolQuestionRow | str | None:
        """The question of this name, if the message may decide it; else what is told, None: nothing."""
        found = [one for one in await self._store.questions() if one.name == name]
        if not found:
            return await self.explain_decision(name, message)
        if len(found) != 1 or not self._is_decider(found[0], message):
            return None
        if self.has_ended(found[0]):
            return outcome(name, found[0].tool, ENDED)
        return found[0] if is_proven(found[0], message) else weak_proof_text(found[0], message)

    async def _decided(self, name: str, message: InboundMessage, verdict: Mapping[str, Any]) -> str | None:
        now = await self._store.decide(name, verdict)
        if now is None:  # somebody else decided, and the turn ended, since it was looked up
            return await self.explain_decision(name, message)
        _log.info(
            "tool_approval.decided", item=name, tool=now.tool, verdict=(now.verdict or {}).get("verdict")
        )
        return outcome(now.name, now.tool, (now.verdict or {}).get("verdict"))

    async def grant(self, name: str, message: InboundMessage, terms: Terms, now: datetime) -> str | None:
        """Approve a call and similar ones; None without a question. Repeatable. Raises `StoreUnavailable`."""
        question = await self._open(name, message)
        if not isinstance(question, ToolQuestionRow):
            return question
        given = self.grant_or_refusal(question, message, terms, now)
        if isinstance(given, str):
            return given
        owner = self._access.decide(message).role is Role.OWNER
        decided = await self._store.decide(name, decision(yes=True, by=given.by, owner=owner), grant=given)
        if decided is None:
            return await self.explain_decision(name, message)
        verdict = (decided.verdict or {}).get("verdict")
        words = outcome(name, decided.tool, verdict)
        if verdict != APPROVED:
            return words
        _log.info("tool_approval.granted", item=given.id, tool=decided.tool, kind=given.scope.kind.value)
        return f"{words}{granted_text(given)}"

    def grant_or_refusal(
        self, question: ToolQuestionRow, message: InboundMessage, terms: Terms, now: datetime
    ) -> Grant | str:
        """The grant that a message gives with its yes to a question, or why it gives none."""
        given = grant_of(question, terms, by=message.sender.address, now=now)
        if given is None:
            return _(
                "Calls like `{name}` cannot be granted in advance; you can approve only this one.",
                name=question.name,
            )
        if terms.everywhere and self._access.decide(message).role is not Role.OWNER:
            return _("Only my owner can give a grant beyond this conversation. Nothing was done.")
        return given

    async def explain_decision(self, name: str, message: InboundMessage) -> str | None:
        """Return the reply about a decided question, or None for outsiders. Raises `StoreUnavailable`."""
        found, decision = await self._store.find_decision(name), self._access.decide(message)
        if found is None or not decision.allowed:
            return None
        here = place_of(found.session) == place_of(message.session)
        alone = found.verdict not in _WAS or message.audience is Audience.DIRECT
        if decision.role is not Role.OWNER and not (here and alone):
            return None
        if (was := _WAS.get(found.verdict)) is None:
            told = outcome(name, found.tool, found.verdict)
            asked = await self._store.questions() if found.verdict == EDITED else []
            still = [one for one in asked if one.session == found.session and one.verdict is None]
            now = [one.name for one in still if self.may_decide(one, message)]
            return told + (_(" The question is `{now}` now.", now=now[-1]) if now else "")
        return _("`{name}` was {was} before. This changes nothing.", name=name, was=_(was))

    async def is_gone(self, name: str) -> bool:
        """Return True if no question of this name waits, decided or not. Raises `StoreUnavailable`."""
        return all(one.name != name for one in await self._store.questions())

    async def overview(self, message: InboundMessage, *, everywhere: bool) -> list[str]:
        """List this person's questions, ``everywhere`` or here. Raises `StoreUnavailable`."""
        return [
            f"- `{one.name}`: {question_subject(one, details=message.session in (one.session, *one.places))}"
            for one in await self._store.questions()
            if one.verdict is None
            and not self.has_ended(one)
            and (everywhere or one.session == message.session or message.session in one.places)
            and self.may_decide(one, message)
        ]

    def has_ended(self, question: ToolQuestionRow) -> bool:
        """Return True if the call that asked has ended, so that an answer would have no effect."""
        return has_ended(question, self._waiting)

    def may_decide(self, question: ToolQuestionRow, message: InboundMessage) -> bool:
        """Return True if a message may approve, reject or withdraw the question."""
        return is_proven(question, message) and self._is_decider(question, message)

    def weak_proof_reply(self, question: ToolQuestionRow, message: InboundMessage) -> str | None:
        """The reply to a message that would decide if it proved its sender better; None for any other."""
        if is_proven(question, message) or not self._is_decider(question, message):
            return None
        return weak_proof_text(question, message)

    def deciders_text(self, question: ToolQuestionRow) -> str:
        """The reply to a yes or no of somebody who may not say it: who may."""
        people = [*question.people, *question.asked]
        channel = question.session.channel
        if any(self._access.role(channel, one, verified=True) is Role.OWNER for one in people):
            people = []
        who = [f"`{safe_line(one)}`" for one in dict.fromkeys(people) if one in question.asked]
        return _(
            "Only {people} may answer `{name}`. It still waits.",
            people=list_of([*who, _("my owner")], " or "),
            name=question.name,
        )

    def _is_decider(self, question: ToolQuestionRow, message: InboundMessage) -> bool:
        decision = self._access.decide(message)
        if decision.role is Role.OWNER:
            return True
        # The question of a background job is asked where the job was wished for.
        places = {place_of(each) for each in (question.session, *question.places)}
        same_place = place_of(message.session) in places
        asked = {person_name(address) for address in question.asked}
        people = {*asked, *map(person_name, question.people)}
        if question.session == SHARED or any(
            self._access.role(question.session.channel, one, verified=True) is Role.OWNER for one in people
        ):
            return False  # the owner spoke in that turn, too, and nobody else says yes to what that led to
        if may_decide_for(self._access, question, message):
            return True
        return decision.allowed and same_place and person_name(message.sender.address) in asked


def proof_level(message: InboundMessage) -> int:
    """Return the strength of the sender's proof; 0 for a message released from quarantine."""
    proof = message.context.proof
    return 0 if is_admitted(message) else _BEST if proof is None else proof


def is_proven(question: ToolQuestionRow, message: InboundMessage) -> bool:
    """Return True if a message proves its sender at least as well as those that led to a question."""
    return not is_admitted(message) and proof_level(message) >= question.proof


def weak_proof_text(question: ToolQuestionRow, message: InboundMessage) -> str:
    """The reply to a message that proves its sender less well."""
    _log.warning("tool_approval.less_verified", item=question.name, proof=proof_level(message))
    return _(_LESS_SURE, name=question.name)


def has_ended(question: ToolQuestionRow, waiting: Container[str]) -> bool:
    """Return True if a server asked this during a call that has ended; ``waiting`` names the open ones."""
    return question.form is not None and question.verdict is None and question.name not in waiting


def question_subject(question: ToolQuestionRow, *, details: bool = False) -> str:
    """Return the subject of a question in a few words, with ``details`` what the first call is given."""
    subject = _("to use `{tool}`" if question.form is None else "an answer for `{tool}`", tool=question.tool)
    if not details or question.form is not None or not question.calls:
        return subject
    given = ToolCall.model_validate(question.calls[0][0]).arguments.values()
    said = safe_line(", ".join(map(str, given)), 60)
    return f"{subject} ({said})" if said else subject


def grant_of(question: ToolQuestionRow, terms: Terms, *, by: str, now: datetime) -> Grant | None:
    """Return the grant that a yes to a question gives on these terms; None if it offers none."""
    scope = parse_scope(question.offer)
    return scope and Grant(
        id=f"g{question.name[1:]}",
        scope=scope,
        conversation="" if terms.everywhere else str(question.session),
        people=tuple(dict.fromkeys(map(person_name, question.people))),
        by=by,
        at=now,
        until=now + timedelta(seconds=terms.seconds),
        turn=question.turn if terms.turn else "",
        origins=from_json(question.origins),
    )


def parse_scope(offer: object) -> Scope | None:
    """The grant that a question offers, as it was recorded."""
    match offer:
        case {"kind": str(kind), "tool": str(tool), "what": str(what)} if kind in set(GrantKind):
            return Scope(GrantKind(kind), tool, what)
    return None


def granted_text(grant: Grant) -> str:
    """Return the sentence that follows an approval which also grants such calls."""
    return _(
        " I allow {scope} as `{id}`; `!grants revoke {id}` ends that.",
        scope=describe_scope(grant.scope),
        id=grant.id,
    )


def outcome(name: str, tool: str, verdict: object) -> str:
    """The outcome of a question."""
    return f"`{name}` {_(_SAID.get(str(verdict), _SAID[EXPIRED]), tool=tool)}"


def place_of(session: SessionKey) -> tuple[str, str]:
    """The place of a session: a thread is in the same place as its room."""
    return session.channel, session.conversation
