"""
The daily budget: who may still make a model call today. Pure. Each tier may spend up to a share of the day's
amount, whoever has spent it: others first, then heartbeat, background jobs, consolidation, the owner last. So
guests leave the owner most of each day. Below its ceiling a call is made; the one that would reach it is the
turn's last, without tools (`decide`). Calls in flight count, so a turn exceeds a ceiling by one call at most.
A day is one of the configured zone. Refused messages: `gateway.turns.failure_and_deferral.Deferral`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Any

from agent_core.language import _, gettext_noop, show_number, show_time
from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage

RECHECK_S = 1800.0
_NEARLY = "the budget of the day is nearly spent"


class BudgetTier(StrEnum):
    """The payers of tokens, in the order in which they are refused."""

    OTHERS = "others"
    HEARTBEAT = "heartbeat"
    BACKGROUND = "background"
    CONSOLIDATION = "consolidation"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens, read and written, and US dollars as far as prices are known."""

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.usd + other.usd)

    @classmethod
    def from_usage(cls, usage: Usage) -> Amount:
        """The amount of a usage."""
        return cls(usage.prompt_tokens + usage.completion_tokens, usage.cost_usd or 0.0)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """
    The limits of a day in tokens and US dollars (None: no limit).

    ``shares`` are the parts (0 to 1) that tiers may use, the owner's is 1; ``zone`` None: this machine's.
    """

    tokens: int | None = None
    usd: float | None = None
    shares: dict[BudgetTier, float] = field(default_factory=dict)
    zone: tzinfo | None = UTC

    @property
    def any(self) -> bool:
        """Return True if there is a limit."""
        return self.tokens is not None or self.usd is not None

    def share(self, tier: BudgetTier) -> float:
        """The share of the day's amount up to which a tier may spend."""
        return self.shares.get(tier, 1.0)


@dataclass(frozen=True, slots=True)
class BudgetDecision:
    """The decision about a call: may it ``go``, and is it the ``last`` (without tools); for a reason."""

    go: bool
    last: bool = False
    reason: str = ""
    until: datetime | None = None


def tier_of(purpose: Purpose, *, owner: bool) -> BudgetTier:
    """The tier of a call; ``owner``: the owner is among those who asked for it."""
    if purpose is Purpose.HEARTBEAT:
        return BudgetTier.HEARTBEAT
    if not owner:
        return BudgetTier.OTHERS
    if purpose is Purpose.CONSOLIDATION:
        return BudgetTier.CONSOLIDATION
    return BudgetTier.BACKGROUND if purpose is Purpose.BACKGROUND else BudgetTier.OWNER


def decide(
    spent: Amount,
    limits: BudgetLimits,
    tier: BudgetTier,
    now: datetime,
    *,
    needs: Amount = Amount(),  # noqa: B008 - a frozen value
    share: float | None = None,
) -> BudgetDecision:
    """
    Decide about a call; ``spent`` includes the expected cost of calls in flight, ``needs`` is its own.

    ``share``: another share than that of all others, for one of them.
    """
    if share is None or tier is not BudgetTier.OTHERS:
        share = limits.share(tier)
    near = False
    for name, used, limit, more in (
        ("tokens", spent.tokens, limits.tokens, needs.tokens),
        ("USD", spent.usd, limits.usd, needs.usd),
    ):
        if limit is None:
            continue
        if used >= limit * share:
            reason = _reason(name, used, limit, share)
            return BudgetDecision(go=False, reason=reason, until=next_day_at(now, limits.zone))
        near = near or used + more >= limit * share
    return BudgetDecision(go=True, last=near, reason=_NEARLY if near else "")


def spent_share(spent: Amount, limits: BudgetLimits) -> float:
    """The spent share of the day's amount: the greater of tokens and money; 0 without a limit."""
    parts = [0.0]
    if limits.tokens is not None:
        parts.append(spent.tokens / limits.tokens)
    if limits.usd is not None:
        parts.append(spent.usd / limits.usd)
    return max(parts)


def budget_state(spent: Amount, limits: BudgetLimits, now: datetime) -> dict[str, Any]:
    """Return the day's state for ``status`` and ``usage``, as JSON."""
    return {
        "day": day_of(now, limits.zone),
        "tokens": {"spent": spent.tokens, "limit": limits.tokens},
        "usd": {"spent": round(spent.usd, 6), "limit": limits.usd},
        "shares": {tier.value: limits.share(tier) for tier in BudgetTier},
        "refused": [each.value for each in BudgetTier if not decide(spent, limits, each, now).go],
        "ends_at": next_day_at(now, limits.zone).isoformat(),
        "opens": opens_at(now, limits),
    }


def opens_at(now: datetime, limits: BudgetLimits) -> str:
    """Return when the next day begins, in its zone: ``on Tuesday at 00:00 (Europe/Berlin)``."""
    at = next_day_at(now, limits.zone).astimezone(limits.zone)
    zone = getattr(limits.zone, "key", None) or at.tzname() or _("local time")
    return f"{show_time(at, gettext_noop('on %A at %H:%M'))} ({zone})"


def day_of(now: datetime, zone: tzinfo | None) -> str:
    """The day in the zone, ``YYYY-MM-DD``."""
    return now.astimezone(zone).date().isoformat()


def next_day_at(now: datetime, zone: tzinfo | None) -> datetime:
    """Return the begin of the zone's next day, in UTC; always later than ``now``."""
    today = now.astimezone(zone).date()
    for days in (1, 2):
        begins = _midnight(today + timedelta(days=days), zone)
        if begins > now:
            return begins
    return now + timedelta(days=1)  # no zone skips two days


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    naive = datetime.combine(day, time.min)
    local = naive.astimezone() if zone is None else naive.replace(tzinfo=zone)
    return local.astimezone(UTC)


def _reason(name: str, used: float, limit: float, share: float) -> str:
    told = f"{used:,.0f} of {limit:,.0f} tokens" if name == "tokens" else f"{used:.2f} of {limit:.2f} USD"
    part = "" if share >= 1 else f", {share:.0%} of it for this"
    return f"the budget of the day is spent: {told}{part}"


def notice_name(session: SessionKey) -> str:
    """The name under which it is noted that a conversation got today's notice."""
    return f"budget {session}"


def wait_s(now: datetime, limits: BudgetLimits) -> float:
    """Return the seconds until the next check: at the latest when the next day begins."""
    return min((next_day_at(now, limits.zone) - now).total_seconds(), RECHECK_S)


def limit_texts(tokens: tuple[float, float | None], usd: tuple[float, float | None]) -> list[str]:
    """Say how much of each limit is spent; each is given as an amount and its limit (None: there is none)."""
    parts = []
    if tokens[1] is not None:
        parts.append(_("{n} of {limit} tokens", n=show_number(tokens[0]), limit=show_number(tokens[1])))
    if usd[1] is not None:
        parts.append(_("{n} of {limit} USD", n=show_number(usd[0], 2), limit=show_number(usd[1], 2)))
    return parts
