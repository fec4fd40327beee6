"""
Decides whether a tool is offered (`is_available`) and whether a call is made, asked about or denied. Pure. A
model cannot be kept from believing what it reads, so the call's effect (`Effect`) and the origins of the
words it was shown (`Trust`) decide. A recipient that the owner has named exactly is the owner's idea, unless
a text that anybody may have written names it as well.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol
from unicodedata import combining, normalize

from agent_core.models import ScopeKind, Session, ToolCall, ToolResult
from agent_core.provenance import Origins, Trust, trust_of
from agent_core.tools.effects import Effect, Review


class PolicyVerdict(StrEnum):
    """The decisions about a call, the most lenient first."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


Policy = Mapping[Effect, Mapping[Trust, PolicyVerdict]]
_ALLOW, _ASK, _DENY = PolicyVerdict.ALLOW, PolicyVerdict.ASK, PolicyVerdict.DENY


def _row(
    owner: PolicyVerdict, known: PolicyVerdict, untrusted: PolicyVerdict
) -> Mapping[Trust, PolicyVerdict]:
    return {Trust.OWNER: owner, Trust.KNOWN: known, Trust.UNTRUSTED: untrusted}


DEFAULT_POLICY: Policy = {
    Effect.READ: _row(_ALLOW, _ALLOW, _ALLOW),
    Effect.PRIVATE_READ: _row(_ALLOW, _ALLOW, _ALLOW),
    Effect.WRITE_WORKSPACE: _row(_ALLOW, _ASK, _ASK),
    Effect.PERSIST: _row(_ALLOW, _ALLOW, _ASK),
    Effect.SEND: _row(_ASK, _ASK, _ASK),
    Effect.NETWORK_GET: _row(_ALLOW, _ALLOW, _ASK),
    Effect.NETWORK_SEND: _row(_ALLOW, _ASK, _ASK),
    Effect.EXECUTE: _row(_ALLOW, _ASK, _ASK),
}
HARMLESS = frozenset({Effect.READ, Effect.PRIVATE_READ})
"""What changes nothing and tells nobody anything: it leaves no receipt."""
_NAMEABLE = frozenset({Effect.SEND, Effect.WRITE_WORKSPACE, Effect.NETWORK_GET})
"""Where naming the target says whose idea a call was. A program or a lasting note is more than its name."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    A call that a model wants to make.

    Args:
        origins: The sources shown to the model, except the owner.
        targets: The recipients or things it reaches.
        named: A person has named all targets verbatim.
        guarded: It needs an approval whatever the policy says.
        is_note: It only stores words for the conversation's people.
        review: Returns the view for the approval.
        following: Returns the answer's further calls and their step offsets, for one question about all.
        changed: Proposes the same call with other arguments; a result says why they cannot be.
    """

    call: ToolCall
    effect: Effect
    origins: Origins = ()
    targets: Sequence[str] = ()
    named: bool = False
    guarded: bool = False
    is_note: bool = False
    review: Callable[[], Awaitable[Review | None]] | None = None
    following: Callable[[], Sequence[tuple[int, Proposal]]] = tuple
    changed: Callable[[Mapping[str, Any]], Proposal | ToolResult] | None = None


class Approval(NamedTuple):
    """
    A person's approval of one call.

    What the call stores gets the origins ``origins``: the owner's, or that person's. ``state`` is the shown
    `Review.state`; ``also`` are the question's further calls, for `ConsentPort`. ``changed``: the person has
    written other arguments.
    """

    by: str
    origins: Origins = ()
    state: str = ""
    also: Sequence[Mapping[str, Any]] = ()
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """The decision about a call: a ``refusal`` or None, the ``approval``, and what runs ``instead``."""

    refusal: ToolResult | None = None
    approval: Approval | None = None
    instead: Proposal | None = None


class ConsentPort(Protocol):
    """Decides about proposed calls, by the policy or by asking a person."""

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        """
        Decide about the call of step ``number``.

        Raises:
            AwaitsApproval: Nobody has decided yet. The caller ends the turn and resumes it later.
        """
        ...


def verdict_on(proposal: Proposal, policy: Policy = DEFAULT_POLICY) -> PolicyVerdict:
    """
    Apply the policy to a proposal.

    A row missing in ``policy`` is the default's. A file sent by an allowed person counts as that person's for
    notes and as untrusted for actions. Named targets turn ASK into ALLOW but never lift a DENY.
    """
    row = {**DEFAULT_POLICY[proposal.effect], **policy.get(proposal.effect, {})}
    trust = trust_of(proposal.origins)
    if trust is Trust.ATTACHED:
        trust = Trust.KNOWN if proposal.is_note else Trust.UNTRUSTED
    verdict = row[trust]
    if verdict is PolicyVerdict.ASK and proposal.named and proposal.effect in _NAMEABLE:
        verdict = PolicyVerdict.ALLOW
    if verdict is PolicyVerdict.ALLOW and proposal.guarded:
        return PolicyVerdict.ASK
    return verdict


_BETWEEN_LETTERS = re.compile(r"[\W_]+")
_WORD = re.compile(r"\w+")
_PART_OF_NAME = re.compile(r"[\w@%/?#&=+~$*\\-]")


def is_named(target: str, texts: Iterable[str]) -> bool:
    """
    Return True if one of the texts contains the target as a whole, not as a part of a longer name.

    Case is ignored only in mail addresses. Linear in the length of the texts.
    """
    wanted = target.strip()
    if not wanted:
        return False
    if folds := "@" in wanted[1:]:
        wanted = wanted.casefold()
    return any(_stands_in(wanted, text.casefold() if folds else text) for text in texts)


def is_said(text: str, message: str) -> bool:
    """Return True if a message contains these words or numbers in sequence, ignoring marks and case."""
    wanted = _spoken(text)
    return bool(wanted.strip()) and wanted in _spoken(message)


def is_written_as_code(command: str, message: str) -> bool:
    """Return True if a code span or block of the message is exactly this command."""
    blocks = message.split("```")
    code = [block.partition("\n")[2] if "\n" in block else block for block in blocks[1:-1:2]]
    code += [span for text in blocks[::2] for span in text.split("`")[1:-1:2]]
    return bool(command.strip()) and command.strip() in map(str.strip, code)


def is_mentioned(target: str, texts: Iterable[str]) -> bool:
    """
    Return True if one of the texts may name the target in any spelling: only letters and digits count.

    A target without any counts as mentioned. Linear in the length of the texts.
    """
    wanted = _bare(target)
    return any(wanted in _bare(text) for text in texts)


def _spoken(text: str) -> str:
    """The words between blanks; numbers without zeros before them, as in 09:00."""
    words = _WORD.findall(normalize("NFKC", text).casefold())
    return f" {' '.join(word.lstrip('0') or '0' if word.isdigit() else word for word in words)} "


def _bare(text: str) -> str:
    return _BETWEEN_LETTERS.sub("", normalize("NFKC", text).casefold())


def _stands_in(wanted: str, text: str) -> bool:
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        before, after = text[max(at - 2, 0) : at], text[end : end + 2]
        if not _goes_on_before(before) and not _goes_on(after):
            return True
        at = text.find(wanted, at + 1)
    return False


def _goes_on(after: str) -> bool:
    """Return True if ``after`` continues a name. A dot, colon or comma may end a sentence instead."""
    if after[:1] in {".", ":", ","}:
        after = after[1:]
    return bool(after) and (_PART_OF_NAME.match(after) is not None or combining(after[0]) != 0)


def _goes_on_before(before: str) -> bool:
    if before[-1:] == "'":  # o'brien, but not a name between quotation marks
        before = before[:-1]
    return before[-1:] == "." or (bool(before) and _PART_OF_NAME.match(before[-1]) is not None)


Availability = Literal["owner", "people", "none"]
"""The owner alone, everybody who may talk to the bot, or nobody."""


def is_available(allow: Availability, session: Session, *, in_rooms: bool = True) -> bool:
    """
    Return True if the tools of a family are offered in this conversation. Every family uses this.

    "owner" stands for conversations in which only the owner writes and reads. Families whose results are
    private are not offered in rooms (``in_rooms`` false), where anybody may ask.
    """
    kind = session.scope.kind
    if allow == "people":
        return in_rooms or kind is not ScopeKind.ROOM
    return allow == "owner" and kind is ScopeKind.OWNER
