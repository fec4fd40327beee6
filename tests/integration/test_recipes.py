"""The recipes of the README's chapter on check-ins and jobs, tried with the demo model."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext
from tests.clock import ManualClock
from tests.proactive_world import ANN, ANN_MAIL, house


async def test_a_morning_briefing_by_mail(tmp_path):
    """A scheduled question is answered by mail each weekday at seven, in one thread, with the owner's memory."""
    clock = ManualClock(datetime(2026, 5, 1, 6, tzinfo=UTC))  # a Friday
    setting = {"interval_minutes": 600.0, "target": f"email:{ANN_MAIL}"}
    async with house(
        tmp_path, heartbeat=setting, clock=clock, schedule={"jitter_seconds": 0.0}, checklist=None
    ) as home:
        await home.asked(ANN, "remember that I have an exam on Monday")
        call = OperationContext(
            home.built.store,
            home.built.memory,
            planned=schedule_context(home.built.proactive, home.built.conversations),
        ).call
        await call(
            "cron_add",
            {"text": "Good morning: what do you know about me?", "cron": "0 7 * * 1-5", "ask": True},
        )
        for hours, mails in ((1, 1), (24, 1), (24, 1), (24, 2)):
            clock.advance(hours * 3600)
            await home.built.proactive.scheduler.fire_due()
            await home.mail.answers(mails)
        assert len(home.mail.delivered) == 2
    assert all("exam on Monday" in one.text for one in home.mail.delivered)
    assert {one.conversation for one in home.mail.delivered} == {f"dm-{ANN_MAIL}"}


async def test_medication_twice_a_day_and_once(tmp_path):
    """Every day at eight and at twenty, word for word; and once, asked for in chat."""
    clock = ManualClock(datetime(2026, 5, 1, 6, tzinfo=UTC))
    async with house(tmp_path, heartbeat={"enabled": False}, clock=clock, checklist=None) as home:
        await home.asked(ANN, "hello")
        call = OperationContext(
            home.built.store,
            home.built.memory,
            planned=schedule_context(home.built.proactive, home.built.conversations),
        ).call
        await call("cron_add", {"text": "Take the blue pill.", "cron": "0 8,20 * * *"})
        assert "Scheduled" in await home.asked(ANN, "remind me tomorrow at 12:30 to fetch new pills")
        for hours, seen in ((2, 3), (12, 4), (12, 5), (4.5, 6), (7.5, 7)):
            clock.advance(hours * 3600)
            await home.built.proactive.scheduler.fire_due()
            await home.chat.answers(seen)
    told = [one.text for one in home.chat.delivered[2:]]
    assert told == ["Take the blue pill."] * 3 + ["fetch new pills"] + ["Take the blue pill."]
