"""
Pauses a turn until a person has approved a tool call: which calls, and whom it asks. The policy
(`agent_core.tools.policy`) decides which calls ask. The turn is left (`AwaitsApproval`): one transaction
records the question as a step, posts the notice and lets the turn wait, without a place or model. A decision
(``questions.py``) makes it due, and it resumes by its journal as after a crash; without one it is due at the
deadline. Check-ins and scheduled jobs are refused at once; a background job asks its person if alone there,
else the owner's in private and others' not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, NoReturn

import structlog

from agent_core.errors import AwaitsApproval, ToolError
from agent_core.language import _, gettext_noop, speaking
from agent_core.memory.scopes import person_name
from agent_core.messages import Attachment, Audience, MessageContext, MessageNotes, OutboundKind
from agent_core.models import ToolCall, ToolResult
from agent_core.ports import Clock
from agent_core.provenance import person, to_json
from agent_core.tools.effects import Effect, Review
from agent_core.tools.grants import scope_of
from agent_core.tools.policy import (
    DEFAULT_POLICY,
    HARMLESS,
    Approval,
    Permission,
    Policy,
    PolicyVerdict,
    Proposal,
    verdict_on,
)
from channels.attachments import AttachmentRefused, AttachmentsUnavailable
from channels.base import Channel, ChannelUnavailable
from gateway.proactive.jobs.job_permissions import PlaceUnknown, can_others_read, current_role
from gateway.routing.access import Role, is_admitted
from gateway.store.background_job_rows import KIND, order_of
from gateway.store.model import APPROVAL, APPROVED, EXPIRED, WITHDRAWN, Question
from gateway.store.stores import NewOutbound, Step, Turn
from gateway.turns.commit import TurnCommit
from gateway.turns.questions.decisions import REFUSED, decision, name_of, proof_level
from gateway.turns.questions.question_text import (
    asking_text,
    attached_text,
    expired_text,
    safe_line,
    subject_of,
    trust_commands,
)
from gateway.turns.questions.review_questions import ReviewQuestions
from gateway.turns.questions.second_owners import is_any_owners, second_owner_places
from gateway.turns.questions.tool_grants import ToolGrants, decision_record, parse_approval

_TOPIC = "approvals"
_OWNERS_ALONE = frozenset({Effect.WRITE_WORKSPACE, Effect.SEND, Effect.NETWORK_SEND, Effect.EXECUTE})
_WITHDRAWN = (
    "The person was asked and wrote something else instead, which you will be shown after this turn. It was "
    "not run; do not try it again now. Say in a sentence that it was not done."
)
_OWNER_HAS_NOT_ANSWERED = (
    "This needs the owner's approval, and the owner has not answered this person's last question yet. It "
    "was not run; the person may ask again later."
)
_NOBODYS_WISH = (
    "It was approved, but the person who asked for it no longer has the right to it. It was not run; do "
    "not try it again."
)
_CHANGED_IN_VAIN = (
    "The owner changed its arguments, and with those the policy of this assistant does not allow it here; it "
    "was not run."
)
_MAX_TOGETHER = 10
_OWNER_IS_ASKED = gettext_noop("I have asked my owner, who sees who wants this and all that I would do.")
_log = structlog.get_logger(__name__)


class ApprovalPending(AwaitsApproval):
    """I wait for somebody's approval before I go on."""

    def __init__(self, step: Step, call: ToolCall) -> None:
        super().__init__(f"waits for approval: {step.request['name']}")
        self.step = step
        self.call = call


@dataclass(eq=False, kw_only=True)
class ToolQuestions:
    """
    Asks people about calls, in all sessions.

    Args:
        reviews: Decides which turns the owner reviews, and reaches the owner.
        wait_s: The deadline of a question.
        grants: The approvals in advance.
        keep: Stores a file to go with a question.
        policy: Decides which calls are asked about.
        zone: The zone of shown times.
    """

    commit: TurnCommit
    reviews: ReviewQuestions
    clock: Clock
    wait_s: float
    grants: ToolGrants
    keep: Callable[[str, bytes], Awaitable[Attachment]]
    policy: Policy = field(default_factory=lambda: DEFAULT_POLICY)
    zone: tzinfo | None = None

    def __post_init__(self) -> None:
        self._store, self._channels = self.commit.store.approvals, self.commit.channels
        self._notifier, self._access = self.reviews.notifier, self.reviews.questions.access

    def consent(self, turn: Turn, steps: Sequence[Step]) -> Consent:
        """Asks about the calls of one turn; ``steps`` is what its earlier starts have done."""
        return Consent(self, turn, steps)

    async def wait(self, turn: Turn, waiting: ApprovalPending) -> None:
        """Ask once, in private of the owner under review, and wait. Raises LostTurn or PlaceUnknown."""
        step = waiting.step
        question = Question.read(step.request, turn.id, turn.session, None)
        file = await self._whole(question)
        if self.reviews.needs_review(turn):
            notice = await self._to_the_owner(turn, question, file, second=False)
        elif not question.asked:
            notice = [
                *await self._to_the_owner(turn, question, file, second=True),
                *await self.notice(turn, question.name, _(_OWNER_IS_ASKED)),
            ]
        else:
            place = await self.question_place(turn) or turn
            spared_by = trust_commands(question.origins) if self._all_owner(turn) else "`!new`"
            is_group = place.head.message.audience is not Audience.DIRECT
            text = self._text(question, place.channel, file, spared_by=spared_by, is_group=is_group)
            notice = [
                replace(one, context=replace(one.context, headline=subject_of(question)))
                for one in await self.notice(turn, question.name, text, file, rings_for=question.asked)
            ]
        if step.result is None and "places" not in step.request:
            places = list(dict.fromkeys(str(new.session) for new in notice))
            step = replace(step, request={**step.request, "places": places})
        delay_s = max((question.until - self.clock.now()).total_seconds(), 0.0)
        rows = await self.commit.retry_until_stored(
            lambda: self._store.ask(turn, step, notice, why=str(waiting), delay_s=delay_s)
        )
        tool, told = waiting.call.name, bool(rows)
        _log.info("turn.approval_pending", channel=turn.channel, tool=tool, item=question.name, told=told)

    async def question(
        self,
        turn: Turn,
        number: int,
        digest: str,
        proposal: Proposal,
        changed: Step | None = None,
        *,
        further: bool = False,
    ) -> ApprovalPending:
        """
        Build a question. Raises ToolError with why it is not asked.

        The owner may decide, and the person who asked unless the effect leaves their conversation. The owner
        has one open question per other person. ``changed`` was answered before its subject changed: the new
        name keeps a late yes to it from counting. ``further``: not the turn's first.
        """
        times = 0 if changed is None else int(changed.request.get("again") or 0) + 1
        call, facts = proposal.call, self.facts(turn, name_of(digest, times), self.wait_s)
        is_the_owners = self._is_the_owners_alone(turn, proposal)
        if is_the_owners and await self._owner_is_busy_with(facts["people"]):
            raise ToolError(_OWNER_HAS_NOT_ANSWERED)
        review = await _review_of(proposal)
        if review.changes_nothing:
            raise ToolError("It is so already, so nothing was done and nobody was asked.")
        also = [] if changed is not None else await self._also(turn, number, proposal)
        offer = None if also else scope_of(proposal)
        request = {
            **facts,
            "again": times,
            "call": call.model_dump(mode="json"),
            "asked": [] if is_the_owners else facts["people"],
            "further": further,
            "effect": proposal.effect.value,
            "origins": to_json(proposal.origins),
            "review": review.text,
            "state": review.state,
            "also": also,
            "offer": None if offer is None else offer._asdict(),
        }
        return ApprovalPending(Step(number, APPROVAL, digest, request, None), call)

    def facts(self, turn: Turn, name: str, seconds: float) -> dict[str, Any]:
        """Return the facts that every question of a turn keeps: its name, its people and its time."""
        now = self.clock.now()
        return {
            "name": name,
            "people": list(dict.fromkeys(row.message.sender.address for row in turn.rows)),
            "at": now.isoformat(),
            "until": (now + timedelta(seconds=seconds)).isoformat(),
            "proof": max(proof_level(row.message) for row in turn.rows),
        }

    def _is_the_owners_alone(self, turn: Turn, proposal: Proposal) -> bool:
        by_policy = self.verdict(replace(proposal, guarded=False)) is not PolicyVerdict.ALLOW
        return by_policy and proposal.effect in _OWNERS_ALONE and not is_any_owners(self._access, turn)

    async def _also(self, turn: Turn, number: int, proposal: Proposal) -> list[dict[str, Any]]:
        """Return the next calls that the same people would be asked about, for the same question."""
        also, alone = list[dict[str, Any]](), self._is_the_owners_alone(turn, proposal)
        for later, each in proposal.following():
            if self.verdict(each) is PolicyVerdict.ASK and self._is_the_owners_alone(turn, each) is alone:
                with suppress(ToolError):  # it is refused when it is its turn
                    review, call = await _review_of(each), each.call.model_dump(mode="json")
                    shown = {"review": review.text, "state": review.state}
                    also.append({"number": number + later, "call": call, **shown})
        return also[: _MAX_TOGETHER - 1]

    async def _owner_is_busy_with(self, people: Sequence[str]) -> bool:
        """Return True if the owner has not yet answered another question that these people's words led to."""
        mine = {person_name(address) for address in people}
        return any(
            one.verdict is None and not one.asked and mine & set(map(person_name, one.people))
            for one in await self.commit.retry_until_stored(self._store.questions)
        )

    async def find_grant(self, turn: Turn, proposal: Proposal) -> Approval | None:
        """The grant that covers a call. It does not change what the call keeps, so no origin is lost."""
        grant = await self.commit.retry_until_stored(lambda: self.grants.find_grant(turn, proposal))
        if grant is None:
            return None
        _log.info("tool_approval.covered", item=grant.id, tool=proposal.call.name)
        return Approval(f"{grant.by} (grant {grant.id})", proposal.origins)

    async def decide_by_grant(self, turn: Turn, step: Step, proposal: Proposal) -> Mapping[str, Any] | None:
        """Return the outcome of an open question if grants, given since, cover all of it; else None."""
        also = {each["number"] - step.number for each in step.request.get("also", ())}
        calls = [proposal, *(each for later, each in proposal.following() if later in also)]
        given = [each for call in calls if (each := await self.find_grant(turn, call)) is not None]
        if len(given) <= len(also):
            return None
        told = {**decision(yes=True, by=given[0].by, owner=False), "granted": True}
        name = str(step.request["name"])
        row = await self.commit.retry_until_stored(lambda: self._store.decide(name, told))
        return None if row is None else row.verdict

    def verdict(self, proposal: Proposal) -> PolicyVerdict:
        """The verdict of the policy."""
        return verdict_on(proposal, self.policy)

    def now(self) -> datetime:
        """The time for the record of an answer."""
        return self.clock.now()

    def _all_owner(self, turn: Turn) -> bool:
        return all(self._access.decide(row.message).role is Role.OWNER for row in turn.rows)

    async def too_late(self, turn: Turn, step: Step) -> Mapping[str, Any] | None:
        """Return the outcome of an expired question, None while in time. Raises LostTurn, PlaceUnknown."""
        if self.clock.now() < datetime.fromisoformat(step.request["until"]):
            return None
        name, tool = str(step.request["name"]), str(step.request["call"]["name"])
        notice = (
            [] if self.reviews.needs_review(turn) else await self.notice(turn, name, expired_text(name, tool))
        )
        verdict = await self.commit.retry_until_stored(
            lambda: self._store.settle(turn, replace(step, result={"verdict": EXPIRED}), notice)
        )
        _log.info("tool_approval.expired", item=name, tool=tool)
        return verdict

    async def _whole(self, question: Question) -> Attachment | None:
        """The file with all that would be done; None: it is short, or is said in the question itself."""
        whole, name = attached_text(question), question.name
        if not whole:
            return None
        try:
            return await self.keep(f"{name}.txt", whole.encode())
        except (AttachmentRefused, AttachmentsUnavailable) as error:
            _log.warning("tool_approval.not_attached", item=name, error=type(error).__name__)
            return None

    def _text(self, question: Question, channel: str, file: Attachment | None, **more: Any) -> str:
        """The question as it is asked by a channel; one that cannot send files is told everything."""
        able = self._channels[channel].capabilities
        is_attached = file is not None and able.attachments
        return asking_text(
            question, zone=self.zone, email_style=able.email_style, is_attached=is_attached, **more
        )

    def is_wanted(self, turn: Turn) -> bool:
        """Return True if all who spoke in a turn may still talk to the bot. Raises `PlaceUnknown`."""
        messages = [row.message for row in turn.rows if row.message.kind == "message"]
        try:
            return not any(
                current_role(self._access, self._channels.get(each.channel), each) is Role.STRANGER
                for each in messages
                if not is_admitted(each)  # by a person, whoever has written it
            )
        except ChannelUnavailable as error:
            raise PlaceUnknown(str(error)) from error

    async def question_place(self, turn: Turn) -> Turn | None:
        """
        Return the turn whose people are asked; None: nobody. Raises `PlaceUnknown`.

        A job asks in its person's conversation if no others can read it, else the owner in private.
        """
        if all(row.message.kind == "message" for row in turn.rows):
            return turn
        found = _job_as_asked(turn)
        if found is None:
            return None
        message, channel = found.head.message, self._channels.get(found.channel)
        alone = channel is not None and message.audience is Audience.DIRECT
        if alone and not await can_others_read(channel, message):
            return found
        return await self._in_private(found) if self._all_owner(found) else None

    async def _in_private(self, turn: Turn) -> Turn | None:
        """A turn as if it had come from the owner's private conversation; None: there is none."""
        reached = await self._notifier.reach(_TOPIC, OutboundKind.ALERT)
        target = reached.target
        if target is None:
            if reached.later:
                raise await self._notifier.unreachable_error(reached)
            return None
        there = {"channel": target.channel, "account": target.account, "session": target.session}
        message = turn.head.message.model_copy(
            update={**there, "audience": Audience.DIRECT, "context": MessageContext()}
        )
        return replace(turn, session=target.session, rows=(replace(turn.head, message=message),))

    async def notice(
        self,
        turn: Turn,
        name: str,
        text: str,
        file: Attachment | None = None,
        *,
        rings_for: Sequence[str] | None = None,
    ) -> list[NewOutbound]:
        """Build a question's notice for its place, if any, ringing deciders. Raises PlaceUnknown."""
        place, order = await self.question_place(turn), order_of(turn.head.message)
        if place is None:
            return []
        if order is not None:
            moved = (
                _(", which you have started in `{place}`", place=safe_line(str(order.place)))
                if place.place != order.place
                else ""
            )
            text = _(
                "In the background job {name}{moved}:\n\n{text}", name=order.label, moved=moved, text=text
            )
        files = () if file is None else _sent_by(self._channels[place.channel], file)
        notices = self.commit.replies(
            place, text, OutboundKind.NOTICE, attachments=files, rings_for=rings_for
        )
        return [
            replace(one, context=replace(one.context, notes=replace(one.context.notes, approves=(name,))))
            for one in notices
        ]

    async def _to_the_owner(
        self, turn: Turn, question: Question, file: Attachment | None, *, second: bool
    ) -> list[NewOutbound]:
        """The question to the owner, each in their language; ``second``: to second owners, too."""
        target = (await self._notifier.reach(_TOPIC)).target
        places = [] if target is None else [(target, "")]
        places += await second_owner_places(self._access, self._channels, turn) if second else []
        who = ", ".join(dict.fromkeys(f"`{safe_line(row.message.sender.address)}`" for row in turn.rows))
        found: list[NewOutbound] = []
        for place, language in places:
            with speaking(language):
                asked_by = _("{people}, by {channel}", people=who, channel=turn.channel)
                notes = MessageNotes(approves=(question.name,))
                found += self._notifier.parts(
                    place,
                    self._text(question, place.channel, file, asked_by=asked_by),
                    OutboundKind.NOTICE,
                    context=MessageContext(headline=subject_of(question), notes=notes),
                    attachments=_sent_by(self._channels[place.channel], file),
                    rings=True,
                )
        return found


class Consent:
    """Implements `agent_core.tools.policy.ConsentPort` for one claimed turn; see `ToolQuestions`."""

    def __init__(self, asking: ToolQuestions, turn: Turn, steps: Sequence[Step]) -> None:
        self._asking = asking
        self._turn = turn
        self._steps = {step.number: step for step in steps}
        self._as_shown = frozenset[int]()
        """Later steps of a question whose files were as shown until a change of its own before them began."""

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        """Permission by the policy, or by a person's approval."""
        try:
            return await self._permission(number, digest, proposal)
        except ToolError as error:
            refusal = ToolResult(
                content=str(error), is_error=True, tool_call_id=proposal.call.id, origins=error.origins
            )
            return Permission(refusal)

    async def _permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        call, step, as_shown = proposal.call, self._steps.get(number), self._as_shown
        if proposal.effect not in HARMLESS:
            self._as_shown = frozenset()
        known = step if step is not None and step.digest == digest else None
        if known is not None and known.kind == "tool":
            return _begun(proposal, known)
        verdict = self._asking.verdict(proposal)
        if verdict is PolicyVerdict.DENY:
            raise ToolError("The policy of this assistant does not allow it here; it was not run.")
        # What was asked about once is not run without an answer, even if the prompt has changed since.
        question = known if known is not None and known.kind == APPROVAL else None
        question = question or self._together(number, digest, call)
        if verdict is PolicyVerdict.ALLOW and question is None:
            return Permission()
        if await self._asking.question_place(self._turn) is None:
            raise ToolError("This needs a person's approval, and nobody can be asked here; it was not run.")
        if question is None:
            granted = await self._asking.find_grant(self._turn, proposal)
            if granted is None:
                await self._ask(number, digest, proposal)
            return Permission(None, granted)
        decided = question.result
        if decided is None:
            decided = await self._asking.decide_by_grant(self._turn, question, proposal)
            decided = decided or await self._asking.too_late(self._turn, question)
            self._steps[number] = replace(question, result=decided)
        if decided is None:
            raise ApprovalPending(question, call)
        return await self._decided(proposal, question, decided, as_shown)

    def _together(self, number: int, digest: str, call: ToolCall) -> Step | None:
        """The question that was about this call, too, as if it had been about this call alone."""
        for step in self._steps.values():
            approval = parse_approval(step.request.get("approval")) if step.kind == "tool" else None
            also = (
                step.request.get("also", ()) if step.kind == APPROVAL else approval.also if approval else ()
            )
            for each in also:
                if each["number"] != number or ToolCall.model_validate(each["call"]) != call:
                    continue
                rest = [one for one in also if one["number"] > number]
                request = {"name": "", **step.request, "state": each["state"], "also": rest}
                said = step.result or {} if approval is None else decision_record(approval)
                return replace(step, number=number, digest=digest, request=request, result=said)
        return None

    async def _ask(
        self, number: int, digest: str, proposal: Proposal, changed: Step | None = None
    ) -> NoReturn:
        """Ask; ask again if the approved state ``changed`` is no longer the same."""
        if any((step.result or {}).get("verdict") == WITHDRAWN for step in self._steps.values()):
            raise ToolError(_WITHDRAWN)
        further = any(map(_was_asked, self._steps.values()))
        raise await self._asking.question(self._turn, number, digest, proposal, changed, further=further)

    async def _note_as_shown(self, proposal: Proposal, question: Step, as_shown: Collection[int]) -> None:
        """Before a change that the question shows: which of its later calls are still as it shows them."""
        if proposal.review is None or proposal.effect not in (Effect.WRITE_WORKSPACE, Effect.PERSIST):
            return
        later, found = dict(proposal.following()), set[int]()
        for each in question.request.get("also", ()):
            again = later.get(each["number"] - question.number)
            if again is None or again.review is None:
                continue
            with suppress(ToolError):
                review = await _review_of(again)
                if each["number"] in as_shown or review.state == each["state"]:
                    found.add(each["number"])
        self._as_shown = frozenset(found)

    async def _approved(
        self, proposal: Proposal, question: Step, decided: Mapping[str, Any], as_shown: Collection[int]
    ) -> Permission:
        """After a yes: the call is made if it is wanted, and as shown but for the question's changes."""
        by = str(decided.get("by") or "somebody")
        if not self._asking.is_wanted(self._turn):
            raise ToolError(_NOBODYS_WISH)
        if decided.get("granted"):
            return Permission(approval=Approval(by, proposal.origins))
        state = (await _review_of(proposal)).state
        if state != question.request.get("state", "") and question.number not in as_shown:
            await self._ask(question.number, question.digest, proposal, question)
        if decided.get("owner") and decided.get("arguments") is not None:
            return await self._approved_changed(proposal, decided["arguments"], by)
        await self._note_as_shown(proposal, question, as_shown)
        theirs = () if decided.get("owner") else (person(by, self._asking.now()),)
        return Permission(approval=Approval(by, theirs, state, question.request.get("also", ())))

    async def _approved_changed(
        self, proposal: Proposal, arguments: Mapping[str, Any], by: str
    ) -> Permission:
        """After the owner's yes to other arguments: the policy must not deny the call that they make."""
        changed = None if proposal.changed is None else proposal.changed(arguments)
        if isinstance(changed, ToolResult):
            return Permission(changed)
        if changed is None or self._asking.verdict(changed) is PolicyVerdict.DENY:
            raise ToolError(_CHANGED_IN_VAIN)
        state = (await _review_of(changed)).state
        return Permission(approval=Approval(by, (), state, changed=True), instead=changed)

    async def _decided(
        self, proposal: Proposal, question: Step, decided: Mapping[str, Any], as_shown: Collection[int]
    ) -> Permission:
        if decided.get("verdict") == APPROVED:
            return await self._approved(proposal, question, decided, as_shown)
        if decided.get("verdict") == REFUSED:
            why = f" ({decided['why']})" if decided.get("why") else ""
            raise ToolError(f"The person was asked and said no{why}. It was not run; do not try it again.")
        raise ToolError("The person was asked and did not answer in time. It was not run.")


def _sent_by(channel: Channel, file: Attachment | None) -> tuple[Attachment, ...]:
    return (file,) if file is not None and channel.capabilities.attachments else ()


def _begun(proposal: Proposal, step: Step) -> Permission:
    """The permission with which a call was begun before a restart, with the arguments it had then."""
    approval = parse_approval(step.request.get("approval"))
    if approval is None or not approval.changed or proposal.changed is None:
        return Permission(approval=approval)
    changed = proposal.changed(step.request["call"]["arguments"])
    if isinstance(changed, ToolResult):
        return Permission(changed)
    return Permission(approval=approval, instead=changed)


def _was_asked(step: Step) -> bool:
    """Return True if a step is a question, or a call that was made after one."""
    return step.kind == APPROVAL or bool(step.request.get("approval"))


def _job_as_asked(turn: Turn) -> Turn | None:
    """A job of a person as a turn of the conversation that asked for it; None of anything else."""
    message = turn.head.message
    if message.kind == "job":  # a scheduled one, also of a webhook or a watch, runs there
        return turn
    order = order_of(message)
    if message.kind != KIND or order is None or order.by_heartbeat:
        return None
    asked = message.model_copy(update={"session": order.place, "context": order.context})
    return replace(turn, session=order.place, rows=(replace(turn.head, message=asked),))


async def _review_of(proposal: Proposal) -> Review:
    """Return the view of a call that a person approves. Raises ToolError."""
    return (None if proposal.review is None else await proposal.review()) or Review("")
