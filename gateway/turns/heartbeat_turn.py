"""
The turn of a heartbeat run (a check-in). A check-in is in a session of its own, and only what was worth
saying leaves a trace in a history: in its own, so that it does not say the same again, and in that of the
conversation where the alert is read, in the same transaction as the alert, so that "what did you mean?" can
be answered there. So a year of silence costs no tokens later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from agent_core.agent import TurnLimits
from agent_core.errors import BudgetSpent
from agent_core.llm.model_errors import EMPTY_ANSWER
from agent_core.messages import OutboundKind
from agent_core.models import Message, Purpose, TurnResult
from agent_core.ports import Clock
from agent_core.provenance import join_origins
from channels.heartbeat.config import HeartbeatConfig
from channels.heartbeat.silence import URGENT, SilenceVerdict, fingerprint, judge_silence
from gateway.budget.metering import UsageMeter
from gateway.proactive.heartbeat_monitor import SAID_ALREADY
from gateway.proactive.owner_contact import Target
from gateway.proactive.owner_notifier import OwnerNotifier, alert_line
from gateway.proactive.run_ledger import failing_since, resting_until
from gateway.store.model import CollectedAlert, LedgerEntry, RunOutcome
from gateway.store.stores import Completion, JobStore, Turn
from gateway.turns.commit import TurnCommit
from gateway.turns.turn_kinds import Plan, TurnFailureText, TurnPolicy

_URGENT_NOTE = (
    f"\n\nWhat you write is collected and sent by mail once a day. If it cannot wait, begin with {URGENT}"
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatPlan(Plan):
    """The plan of a check-in; ``digest``: non-urgent alerts wait; ``began`` is monotonic."""

    target: Target
    digest: bool
    began: float


@dataclass(eq=False, kw_only=True)
class HeartbeatTurns:
    """Implements `TurnKind` for check-ins; ``plans`` has ledger and digest."""

    turn_commit: TurnCommit
    plans: JobStore
    notifier: OwnerNotifier
    config: HeartbeatConfig
    limits: TurnLimits
    clock: Clock

    async def plan(self, turn: Turn) -> HeartbeatPlan | None:
        """Plan; None: resting, or alerts reach nobody. Raises StoreUnavailable or OwnerUnreachable."""
        began = self.clock.monotonic()
        message = turn.head.message
        if not message.context.forced and (resting := await self._resting(message.channel)):
            await self._skip(turn, resting)
            return None
        reached = await self.notifier.reach(f"alert {turn.id}")
        if reached.later and turn.first_deferred_s < self._patience_s:
            raise await self.notifier.unreachable_error(reached)
        if reached.target is None:
            await self._skip(turn, reached.why)
            return None
        email_style = self.notifier.is_email_style(reached.target)
        digest = email_style and self.config.digest.enabled and bool(reached.target.person)
        return HeartbeatPlan(
            turn,
            Purpose.HEARTBEAT,
            message.text + _URGENT_NOTE if digest else None,
            limits=self.limits,
            target=reached.target,
            digest=digest,
            began=began,
        )

    async def _resting(self, name: str) -> str:
        entries = await self.plans.ledger(name=name, limit=40)
        until = resting_until(entries, self.clock.now(), timedelta(minutes=self.config.interval_minutes))
        if until is None:
            return ""
        failed = failing_since(entries)
        return f"resting after {len(failed)} failures: {failed[0].reason}"

    def policy(self, policy: TurnPolicy) -> TurnPolicy:
        """The policy of a check-in, which does not wait for a model until the next one is due."""
        return replace(policy, outage_budget_s=min(policy.outage_budget_s, self._patience_s))

    @property
    def _patience_s(self) -> float:
        return min(self.config.interval_minutes * 60 / 2, 900.0)

    async def defer_to_budget(self, turn: Turn, error: BudgetSpent) -> None:
        """Skip the check-in."""
        await self._skip(turn, str(error))

    async def report_failure(self, turn: Turn, failure: TurnFailureText) -> None:
        """Skip the check-in silently: nobody asked for it, and an empty answer has nothing to report."""
        if EMPTY_ANSWER in failure.public:
            entry = self._entry(turn, RunOutcome.SILENT, "empty")
            await self.turn_commit.complete(turn, Completion(purpose=Purpose.HEARTBEAT, entry=entry))
            return
        _log.error("heartbeat.run_failed", kind="tick", turn=turn.id, error=failure.error)
        entry = self._entry(turn, RunOutcome.FAILED, failure.error)
        await self.turn_commit.complete(turn, Completion(purpose=Purpose.HEARTBEAT, entry=entry))

    async def _skip(self, turn: Turn, reason: str) -> None:
        _log.info("heartbeat.run_skipped", kind="tick", reason=reason)
        entry = self._entry(turn, RunOutcome.SKIPPED, reason)
        await self.turn_commit.complete(turn, Completion(purpose=Purpose.HEARTBEAT, entry=entry))

    async def commit(self, turn: Turn, plan: HeartbeatPlan, result: TurnResult, meter: UsageMeter) -> None:
        """Commit the alert, or that there is nothing to report."""
        await self.turn_commit.complete(turn, await self._completion(turn, plan, result), meter)

    async def _completion(self, turn: Turn, plan: HeartbeatPlan, result: TurnResult) -> Completion:
        entry = replace(
            self._entry(turn, RunOutcome.DELIVERED),
            tokens=result.usage.prompt_tokens + result.usage.completion_tokens,
            calls=result.usage.calls,
            took_s=round(self.clock.monotonic() - plan.began, 3),
        )
        verdict = await self._judged(result.reply)
        if not verdict.text and not result.attachments:
            entry = replace(entry, outcome=RunOutcome.SILENT, reason=verdict.reason)
            return Completion(usage=result.usage, purpose=Purpose.HEARTBEAT, entry=entry)
        entry = replace(entry, said=fingerprint(verdict.text))
        return self._alert(turn, plan, result, verdict, entry)

    async def _judged(self, reply: str) -> SilenceVerdict:
        verdict = judge_silence(reply)
        hours = self.config.dedupe_hours
        if not verdict.text or not hours:
            return verdict
        since = self.clock.now() - timedelta(hours=hours)
        if await self.plans.was_said(fingerprint(verdict.text), since=since):
            return SilenceVerdict(reason=SAID_ALREADY)
        return verdict

    def _alert(
        self, turn: Turn, plan: HeartbeatPlan, result: TurnResult, verdict: SilenceVerdict, entry: LedgerEntry
    ) -> Completion:
        target = plan.target
        origins = join_origins(*(line.sources for line in result.history))
        own = _own_history(turn, result, verdict.text)
        # A digest is text: what comes with files is sent at once.
        if plan.digest and not verdict.urgent and not result.attachments:
            waiting = CollectedAlert(target.channel, target.person, verdict.text, self.clock.now())
            entry = replace(entry, outcome=RunOutcome.COLLECTED)
            return Completion(
                history=own, usage=result.usage, purpose=Purpose.HEARTBEAT, entry=entry, collected=(waiting,)
            )
        told = alert_line(verdict.text, f"{turn.id}.alert", self.clock.now(), origins)
        return Completion(
            outbound=self.notifier.parts(
                target, verdict.text, OutboundKind.ALERT, attachments=result.attachments
            ),
            history=own,
            usage=result.usage,
            purpose=Purpose.HEARTBEAT,
            others=((self.notifier.read_in(target), (told,)),),
            entry=entry,
        )

    def _entry(self, turn: Turn, outcome: RunOutcome, reason: str = "") -> LedgerEntry:
        message = turn.head.message
        return LedgerEntry(message.channel, message.received_at, outcome, reason[:300])


def _own_history(turn: Turn, result: TurnResult, said: str) -> tuple[Message, ...]:
    """The lines of a check-in without its long text: when it was, and what was said."""
    at = turn.head.message.received_at
    asked = f"[The check-in of {at:%Y-%m-%d %H:%M} UTC.]"
    return tuple(
        line.model_copy(update={"content": asked if line.role == "user" else said})
        if line.role in ("user", "assistant")
        else line
        for line in result.history
    )
