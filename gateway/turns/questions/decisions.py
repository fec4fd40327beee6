"""
What a decision about a question comes to: the verdict that is recorded, the grant that is given with it, and
the sentence that tells of it. Pure. Commands, words, signs, voice, the console and the command line all come
here; `gateway.turns.questions.questions` says who may decide, and finds what they mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agent_core.language import _, gettext_noop, list_of
from agent_core.memory.scopes import person_name
from agent_core.messages import InboundMessage, SessionKey
from agent_core.text import read_number
from agent_core.tools.forms import NotAnAnswer, read
from agent_core.tools.grants import Grant, describe_scope
from gateway.routing.access import is_admitted
from gateway.store.model import APPROVED, DELETED, EDITED, EXPIRED, LEFT, STOPPED, WITHDRAWN, Question
from gateway.turns.questions.question_text import safe_line

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
WAS = {
    APPROVED: gettext_noop("approved"),
    REFUSED: gettext_noop("rejected"),
    ANSWERED: gettext_noop("answered"),
    DECLINED: gettext_noop("declined"),
}
"""The verdicts that people give."""
_BEST = 2
_DIGITS = 6


class Unfit(Exception):
    """A decision that does not fit its question and decides nothing; the text is for whoever made it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The duration and the place of a grant; ``turn``: only for the turn that waits."""

    seconds: float
    turn: bool = False
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """
    A yes or no and the reason.

    ``text`` answers a server, ``terms`` grant similar calls, ``arguments`` replace those of the call.
    """

    yes: bool = True
    why: str = ""
    text: str | None = None
    terms: Terms | None = None
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Decider:
    """The person who decides, the time, and the form of a command where they are."""

    by: str
    owner: bool
    at: datetime
    command: str = "`!{} {}`"


def name_of(digest: str, again: int = 0) -> str:
    """The short, unique name of a question about a step that was asked about ``again`` so often."""
    if again:
        digest = hashlib.sha256(f"{digest} {again}".encode()).hexdigest()
    return f"a{digest[:_DIGITS]}"


def is_call(name: str) -> bool:
    """Return True if a text can be the name of a call."""
    return len(name) == _DIGITS + 1 and name[0] == "a" and not set(name[1:]) - set("0123456789abcdef")


def is_review_name(name: str) -> bool:
    """Return True if a text can be the name of a draft or a quarantined message."""
    return name[:1] in ("d", "m") and read_number(name[1:]) is not None


def clean_name(name: str) -> str:
    """A name as a person writes it."""
    return name.strip().strip("`*:.").lower()


def decision(*, yes: bool, by: str, owner: bool, why: str = "") -> dict[str, Any]:
    """The record of a decision, and whether it is the owner's."""
    why = safe_line(why) if why else ""
    return {"verdict": APPROVED if yes else REFUSED, "why": why, "by": by, "owner": owner}


def verdict_on_question(
    question: Question, said: Decision, who: Decider
) -> tuple[dict[str, Any], Grant | None]:
    """Return the record of a decision and the grant that it gives. Raises `Unfit`."""
    told = decision(yes=said.yes, by=who.by, owner=who.owner, why=said.why)
    name, how = question.name, who.command.format("answer", f"{question.name} …")
    if said.terms is not None:
        given = _grant_of(question, said.terms, who)
        if given is None:
            raise Unfit(
                _(
                    "Calls like `{name}` cannot be granted in advance; you can approve only this one.",
                    name=name,
                )
            )
        if said.terms.everywhere and not who.owner:
            raise Unfit(_("Only my owner can give a grant beyond this conversation. Nothing was done."))
        return told, given
    if question.form is None:
        if said.text is None:
            return told if said.arguments is None else {**told, "arguments": said.arguments}, None
        both = [who.command.format(word, name) for word in ("approve", "reject")]
        raise Unfit(_("`{name}` needs a yes or a no: {commands}.", name=name, commands=list_of(both, " or ")))
    if not said.yes:
        return {**told, "verdict": DECLINED}, None
    if question.form.fields and said.text is None:
        raise Unfit(_("`{name}` needs more than a yes: {command}", name=name, command=how))
    try:
        content = read(question.form, "yes" if said.text is None else said.text)
    except NotAnAnswer as error:
        raise Unfit(
            _(
                "That does not answer `{name}`, so I send nothing to the server. {error} {command}",
                name=name,
                error=error,
                command=how,
            )
        ) from error
    return {**told, "verdict": ANSWERED, "content": content}, None


def _grant_of(question: Question, terms: Terms, who: Decider) -> Grant | None:
    return question.offer and Grant(
        id=f"g{question.name[1:]}",
        scope=question.offer,
        conversation="" if terms.everywhere else str(question.session),
        people=tuple(dict.fromkeys(map(person_name, question.people))),
        by=who.by,
        at=who.at,
        until=who.at + timedelta(seconds=terms.seconds),
        turn=question.turn if terms.turn else "",
        origins=question.origins,
    )


def granted_text(grant: Grant | None) -> str:
    """Return the sentence that follows an approval which also grants such calls; empty without a grant."""
    if grant is None:
        return ""
    return _(
        " I allow {scope} as `{id}`; `!grants revoke {id}` ends that.",
        scope=describe_scope(grant.scope),
        id=grant.id,
    )


def outcome(name: str, tool: str, verdict: object) -> str:
    """The outcome of a question; ``verdict`` is what was said, or the record of it."""
    verdict = verdict.get("verdict") if isinstance(verdict, Mapping) else verdict
    return f"`{name}` {_(_SAID.get(str(verdict), _SAID[EXPIRED]), tool=tool)}"


def question_subject(question: Question, *, details: bool = False) -> str:
    """Return the subject of a question in a few words, with ``details`` what the first call is given."""
    subject = _("to use `{tool}`" if question.form is None else "an answer for `{tool}`", tool=question.tool)
    if not details or not question.calls:
        return subject
    given = question.calls[0][0].arguments.values()
    said = safe_line(", ".join(map(str, given)), 60)
    return f"{subject} ({said})" if said else subject


def proof_level(message: InboundMessage) -> int:
    """Return the strength of the sender's proof; 0 for a message released from quarantine."""
    proof = message.context.proof
    return 0 if is_admitted(message) else _BEST if proof is None else proof


def is_proven(question: Question, message: InboundMessage) -> bool:
    """Return True if a message proves its sender at least as well as those that led to a question."""
    return not is_admitted(message) and proof_level(message) >= question.proof


def has_ended(question: Question, waiting: Container[str]) -> bool:
    """Return True if a server asked this during a call that has ended; ``waiting`` names the open ones."""
    return question.form is not None and question.verdict is None and question.name not in waiting


def place_of(session: SessionKey) -> tuple[str, str]:
    """The place of a session: a thread is in the same place as its room."""
    return session.channel, session.conversation
