"""The decisions of the daily budget: who may still spend, what a day is, and whose call it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.models import Purpose
from gateway.budget.budget_policy import (
    Amount,
    BudgetDecision,
    BudgetLimits,
    BudgetTier,
    day_of,
    decide,
    next_day_at,
    tier_of,
)
from gateway.budget.config import BudgetSettings
from tests.clock import EPOCH
from tests.doubles.budget import limits

ZONES = ("UTC", "Europe/Berlin", "America/Havana", "Asia/Kathmandu", "Pacific/Apia", "America/St_Johns")

amounts = st.builds(Amount, st.integers(0, 30_000), st.floats(0, 30, allow_nan=False))


class TestDecision:
    @given(amounts, amounts, st.sampled_from(list(BudgetTier)))
    def test_whoever_is_sacrificed_later_may_do_what_an_earlier_one_may(self, spent, needs, one):
        """Others, heartbeat, background jobs, consolidation, owner: each may do at least what the one before may."""
        order = list(BudgetTier)
        later = order[min(order.index(one) + 1, len(order) - 1)]
        mine = decide(spent, limits(usd=10.0), one, EPOCH, needs=needs)
        theirs = decide(spent, limits(usd=10.0), later, EPOCH, needs=needs)
        assert theirs.go >= mine.go
        assert (theirs.go and not theirs.last) >= (mine.go and not mine.last)

    @given(amounts, amounts, st.sampled_from(list(BudgetTier)))
    def test_more_spent_never_allows_more(self, spent, more, tier):
        """A decision is monotone in what was spent and in what is needed."""
        before = decide(spent, limits(usd=10.0), tier, EPOCH)
        after = decide(spent + more, limits(usd=10.0), tier, EPOCH, needs=more)
        assert before.go >= after.go

    def test_money_is_refused_even_where_tokens_are_only_near(self):
        """The stricter of two limits decides."""
        found = decide(Amount(9_999, 5.0), limits(usd=4.0), BudgetTier.OWNER, EPOCH, needs=Amount(500))
        assert not found.go
        assert found.until == EPOCH + timedelta(days=1)

    def test_without_limits_everything_goes(self):
        """No limit refuses nothing, whatever was spent."""
        assert decide(Amount(10**12, 1e6), BudgetLimits(), BudgetTier.HEARTBEAT, EPOCH) == BudgetDecision(
            go=True
        )

    def test_the_owner_is_never_taken_for_somebody_else(self):
        """What the owner asks for, jobs too, is the owner's; summaries of others' words are theirs."""
        assert tier_of(Purpose.CHAT, owner=True) is BudgetTier.OWNER
        assert tier_of(Purpose.JOB, owner=True) is BudgetTier.OWNER
        assert tier_of(Purpose.JOB, owner=False) is BudgetTier.OTHERS
        assert tier_of(Purpose.BACKGROUND, owner=True) is BudgetTier.BACKGROUND
        for purpose in set(Purpose) - {Purpose.HEARTBEAT}:
            assert tier_of(purpose, owner=False) is BudgetTier.OTHERS
        assert tier_of(Purpose.HEARTBEAT, owner=True) is BudgetTier.HEARTBEAT
        assert tier_of(Purpose.CONSOLIDATION, owner=True) is BudgetTier.CONSOLIDATION

    @given(st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)), st.sampled_from(ZONES))  # noqa: DTZ001
    def test_a_day_ends_where_the_next_one_begins(self, naive, name):
        """The end of a day is later than now, is in another day, and a second before it still is today."""
        zone, now = ZoneInfo(name), naive.replace(tzinfo=UTC)
        end = next_day_at(now, zone)
        assert end > now
        assert end - now <= timedelta(hours=50)
        assert day_of(end, zone) > day_of(now, zone)
        assert day_of(end - timedelta(seconds=1), zone) == day_of(now, zone)

    def test_settings_in_the_wrong_order_are_refused(self):
        """Shares that would let the heartbeat outlive people are an error that says so."""
        with pytest.raises(ValueError, match="heartbeat stops first"):
            BudgetSettings.model_validate({"shares": {"heartbeat": 0.95}})
        with pytest.raises(ValueError, match="unknown time zone"):
            BudgetSettings.model_validate({"timezone": "Mars/Base"})
        assert not BudgetSettings().limits("local").any
