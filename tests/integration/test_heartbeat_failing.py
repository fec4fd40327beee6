"""Check-ins that fail, are missed or overtaken: what is noted, who is told, and what is told later all the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_core.errors import ModelRefused
from agent_core.models import ToolCall
from channels.heartbeat.silence import SILENCE
from channels.heartbeat.tick_schedule import tick_name
from gateway.proactive.heartbeat_monitor import outcome_text
from gateway.proactive.run_ledger import failing_since, resting_until
from gateway.store.model import LedgerEntry, RunOutcome
from tests.clock import ManualClock
from tests.integration.test_heartbeat_turns import SELDOM, tick
from tests.proactive_world import ANN, house


class TestFailing:
    async def test_failures_are_noted_rest_and_are_shown(self, tmp_path):
        """No apology to anybody; after two in a row the next one rests, and status says why."""
        says = [ModelRefused("no"), ModelRefused("no"), "HEARTBEAT_OK"]
        config = {"interval_minutes": 0.02}
        async with house(tmp_path, *says, heartbeat=config) as home:
            await home.asked(ANN, "hello")

            async def rested() -> bool:
                ends = [outcome for outcome, _ in await home.ledger()]
                return ends.count("failed") == 2 and "silent" in ends

            await home.until(rested)
            entries = await home.ledger()
        assert [outcome for outcome, _ in entries if outcome != "skipped"][:3] == [
            "failed",
            "failed",
            "silent",
        ]
        assert any(reason.startswith("resting after 2 failures: no") for _, reason in entries)
        assert home.alerts() == []

    def test_each_rest_is_twice_as_long_and_ends(self):
        """Pure: 2, 4, 8 intervals, never beyond half a day; a success ends it, a wrong clock too."""
        now, step = datetime(2026, 5, 1, tzinfo=UTC), timedelta(minutes=30)

        def line(outcome: RunOutcome, ago: timedelta) -> LedgerEntry:
            return LedgerEntry("heartbeat", now - ago, outcome, "no", at=now - ago)

        failed = [line(RunOutcome.FAILED, timedelta(0))]
        assert resting_until(failed, now, step) is None
        for count, rest in ((2, 1), (3, 2), (4, 4), (30, 12)):
            assert resting_until(failed * count, now, step) == now + timedelta(hours=rest)
        skipped = [line(RunOutcome.SKIPPED, timedelta(0))]
        assert resting_until(skipped + failed * 2, now, step) is not None
        assert resting_until([line(RunOutcome.SILENT, timedelta(0)), *failed * 5], now, step) is None
        assert resting_until([line(RunOutcome.FAILED, -step)] * 3, now, step) is None
        assert len(failing_since(failed * 3 + [line(RunOutcome.SILENT, step)] + failed)) == 3

    @pytest.mark.parametrize(
        ("says", "why", "calls"),
        [
            (
                ToolCall(id="c", name="search_history", arguments={"query": "milk"}),
                "no answer even without",
                3,
            ),
            (30.0, "no answer within 0.3 s", 1),
        ],
    )
    async def test_steps_and_time_are_limited(self, tmp_path, says, why, calls):
        """A model that loops over tools, or hangs, costs what the settings allow, and the tick has failed."""
        limits = {"steps": 3, "seconds": 0.3 if calls == 1 else 20.0}
        async with house(tmp_path, says, heartbeat={**SELDOM, "limits": limits}) as home:
            await home.asked(ANN, "hello")
            outcome, reason = await tick(home)
        assert (outcome, home.model.ticks >= calls - 1) == ("failed", True)
        assert reason.startswith(why)
        assert len(home.model.asked) == 1 + calls

    async def test_tokens_are_limited(self, tmp_path):
        """A model that reads and reads gets one more call without tools when its tokens are spent."""
        call = ToolCall(id="c", name="search_history", arguments={"query": "milk " * 800})
        limits = {"steps": 100, "tokens": 3000}
        async with house(tmp_path, call, heartbeat={**SELDOM, "limits": limits}) as home:
            await home.asked(ANN, "hello")
            outcome, reason = await tick(home)
            [line] = await home.plans.ledger(name="heartbeat")
        assert (outcome, reason.startswith("no answer even without")) == ("failed", True)
        assert home.model.ticks < 10
        assert line.outcome is RunOutcome.FAILED

    async def test_the_dead_mans_notice_comes_once(self, tmp_path):
        """When nothing has worked for so many intervals the owner is told, once, and again only after life."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "alert_after_missed": 4}
        async with house(tmp_path, heartbeat=setting, clock=clock, sleep=_never) as home:
            await home.asked(ANN, "hello")
            look = home.built.proactive.monitor.check_once
            await look()
            clock.advance(1.5 * 3600)
            await look()
            assert home.alerts() == []
            clock.advance(3600)
            for _ in range(3):
                await look()
            await home.chat.answers(2)
            await home.plans.note(LedgerEntry("heartbeat", clock.now(), RunOutcome.SILENT))
            clock.advance(3 * 3600)
            await look()
            await home.chat.answers(3)
        assert len(home.alerts()) == 2
        assert "have failed since Thu 2026-01-01 00:00 UTC: 4 of them or more" in home.alerts()[0].text

    async def test_a_machine_that_was_asleep_is_not_told_of_by_the_notice(self, tmp_path, monkeypatch):
        """The check-in that runs when it wakes says it. What fails after that is told, also if the clock is set back."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "alert_after_missed": 4}
        async with house(tmp_path, heartbeat=setting, clock=clock, sleep=_never) as home:
            await home.asked(ANN, "hello")
            monitor = home.built.proactive.monitor

            async def asleep(_: float) -> None:
                clock.advance(9 * 3600)

            await monitor.check_once()
            with monkeypatch.context() as patched:
                patched.setattr("gateway.proactive.heartbeat_monitor.anyio.sleep", asleep)
                await monitor.pause()
            await monitor.check_once()
            assert home.alerts() == []
            clock.advance(-3 * 3600)
            await monitor.check_once()
            clock.advance(3 * 3600)
            await monitor.check_once()
            await home.chat.answers(2)
        assert len(home.alerts()) == 1

    @pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
    async def test_check_ins_at_short_intervals_are_missed_too(self, tmp_path, monkeypatch, seconds):
        """The monitor's own pause of half a minute is no sleep of the machine."""
        clock = ManualClock()
        setting = {"interval_minutes": seconds / 60, "alert_after_missed": 4}
        async with house(tmp_path, heartbeat=setting, clock=clock, sleep=_never) as home:
            await home.asked(ANN, "hello")
            monitor = home.built.proactive.monitor

            async def passing(pause_s: float) -> None:
                clock.advance(pause_s + 0.5)

            with monkeypatch.context() as patched:
                patched.setattr("gateway.proactive.heartbeat_monitor.anyio.sleep", passing)
                for _ in range(8):
                    await monitor.check_once()
                    await monitor.pause()
            await home.chat.answers(2)
        assert len(home.alerts()) == 1

    @pytest.mark.parametrize(
        ("checklist", "watch"),
        [
            ("- [ ] buy milk\n", []),
            ("# Nothing yet\n", []),
            (None, []),
            (None, [{"due": True}]),
            (None, [{"due": True}, {"file": "inbox"}]),
        ],
    )
    async def test_a_machine_that_was_off_tells_it_at_its_start(self, tmp_path, checklist, watch):
        """
        After a night off there is one notice, and after a short pause none; none if there was nothing to look at.
        """
        clock = ManualClock()
        setting = {
            "interval_minutes": 30.0,
            "alert_after_missed": 4,
            "target": f"matrix:{ANN}",
            "watch": watch,
        }
        async with house(
            tmp_path, SILENCE, heartbeat=setting, clock=clock, checklist=checklist, sleep=_never
        ) as home:
            await home.until(lambda: home.built.supervisor.all_up)
            chat = home.chat
        told = int("milk" in (checklist or "") or len(watch) > 1)
        for hours, notices in ((1, 0), (9, told), (0.6, told)):
            clock.advance(hours * 3600)
            async with house(
                tmp_path,
                SILENCE,
                heartbeat=setting,
                clock=clock,
                checklist=checklist,
                chat=chat,
                sleep=_never,
            ) as home:
                await home.until(lambda: _noted(home, clock))
                await home.until(lambda: bool(home.alerts()) or not notices)  # noqa: B023 - awaited here
                assert len(home.alerts()) == notices
        assert all("did not run (17 of them)" in each.text for each in home.alerts())

    async def test_a_clock_that_began_with_1970_makes_no_false_alarm(self, tmp_path):
        """A machine without a battery: at its start it is 1970 for a moment, then the right time, ten minutes on."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "alert_after_missed": 4, "target": f"matrix:{ANN}"}
        async with house(tmp_path, SILENCE, heartbeat=setting, clock=clock, sleep=_never) as home:
            await home.until(lambda: home.built.supervisor.all_up)
            chat = home.chat
        years = 56 * 365.25 * 86_400
        for seconds in (1800, -years, years + 600, 9 * 3600):
            clock.advance(seconds)
            alerts = home.alerts()
            async with house(
                tmp_path, SILENCE, heartbeat=setting, clock=clock, chat=chat, sleep=_never
            ) as home:
                await home.until(lambda: _noted(home, clock))
                if seconds == 9 * 3600:
                    await home.until(home.alerts)
        assert alerts == []
        assert ["did not run (17 of them)" in one.text for one in home.alerts()] == [True]

    async def test_what_was_missed_is_told_as_soon_as_there_is_a_place(self, tmp_path):
        """Without an owner at that start it waits, also over another start, is shown, and comes once."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "alert_after_missed": 4}
        nobody = {"owner": ()}
        quiet = {"heartbeat": setting, "clock": clock, "sleep": _never}

        async def shown() -> bool:
            return (await home.built.proactive.state())["owner"]["alerts_waiting"] == 1

        async with house(tmp_path, SILENCE, **quiet, **nobody) as home:
            await home.until(lambda: home.built.supervisor.all_up)
        clock.advance(9 * 3600)
        async with house(tmp_path, SILENCE, **quiet, **nobody) as home:
            await home.until(lambda: _noted(home, clock))
        clock.advance(600)
        async with house(tmp_path, SILENCE, **quiet, **nobody) as home:
            await home.until(shown)
        async with house(tmp_path, SILENCE, **quiet) as home:
            await home.until(home.alerts)
            assert not await shown()
        assert ["did not run (17 of them)" in one.text for one in home.alerts()] == [True]


async def _never(_: float) -> None:
    import anyio

    await anyio.sleep_forever()


async def _noted(home, clock) -> bool:
    """Whether the newest check-in has been dealt with."""
    newest = home.built.proactive.heartbeat.schedule.newest(clock.now())
    return await home.built.store.inbox.position("heartbeat", "heartbeat", "last_tick") == tick_name(newest)


class TestUntold:
    async def test_a_change_that_nobody_was_told_of_is_told_by_the_next_check_in(self, tmp_path):
        """The model fails at the tick that saw the change: the next one asks about it again, and then no more."""
        watch = {**SELDOM, "watch": [{"file": "inbox"}]}
        says = [ModelRefused("no"), "There is a file.", "There is a file, again."]
        async with house(tmp_path, *says, heartbeat=watch, checklist=None) as home:
            await home.asked(ANN, "hello")
            assert (await tick(home))[0] == "skipped"
            (home.checklist.parent / "inbox").mkdir()
            assert (await tick(home))[0] == "failed"
            assert (await tick(home))[0] == "delivered"
            assert (await tick(home))[0] == "skipped"
            await home.until(home.alerts)
        assert "inbox has changed." in home.model.asked[-1][-1].content
        assert [one.text for one in home.alerts()] == ["There is a file."]

    async def test_a_change_seen_while_there_was_no_target_is_told_when_there_is_one(self, tmp_path):
        """Two changes are seen while there is no owner; the first check-in that can tell, tells both."""
        watch = {**SELDOM, "watch": [{"file": "inbox"}, {"file": "notes"}]}
        async with house(tmp_path, heartbeat=watch, checklist=None, owner=()) as home:
            assert (await tick(home))[0] == "skipped"
            (home.checklist.parent / "inbox").mkdir()
            assert await tick(home) == ("skipped", "the owner has no direct conversation yet")
            (home.checklist.parent / "notes").mkdir()
            assert await tick(home) == ("skipped", "the owner has no direct conversation yet")
        async with house(tmp_path, "Two things.", heartbeat=watch, checklist=None) as home:
            assert (await tick(home))[0] == "delivered"
            assert (await tick(home)) == ("skipped", "nothing to do: no watch has fired")
            await home.until(home.alerts)
        assert "inbox has changed." in home.model.asked[-1][-1].content
        assert "notes has changed." in home.model.asked[-1][-1].content
        assert [one.text for one in home.alerts()] == ["Two things."]

    async def test_a_change_of_a_check_in_that_was_overtaken_and_failed_is_told(self, tmp_path):
        """The first one is still on its way when the second begins, and fails after that: it is told by the third."""
        watch = {**SELDOM, "watch": [{"file": "one"}, {"file": "two"}], "limits": {"seconds": 3.0}}
        async with house(tmp_path, 60.0, "Two.", "One.", heartbeat=watch, checklist=None) as home:
            await home.asked(ANN, "hello")
            assert (await tick(home))[0] == "skipped"
            (home.checklist.parent / "one").mkdir()
            await home.built.proactive.heartbeat.now()
            await home.until(lambda: home.model.ticks == 1)
            (home.checklist.parent / "two").mkdir()
            assert (await tick(home))[0] == "delivered"
            assert "two has changed." in home.model.asked[-1][-1].content
            assert "one has changed." not in home.model.asked[-1][-1].content
            assert (await tick(home))[0] == "delivered"
            assert "one has changed." in home.model.asked[-1][-1].content
            assert (await tick(home))[0] == "skipped"
            ended = [outcome for outcome, reason in await home.ledger() if not reason.startswith("nothing")]
        assert ended == ["failed", "delivered", "delivered"]

    def test_how_a_check_in_has_ended(self):
        """By its own line; without one, by a later line; a row of idle ones around it says nothing of it."""
        at = datetime(2026, 1, 1, tzinfo=UTC)

        def entry(
            minute: int, outcome: RunOutcome, reason: str = "", until: int | None = None
        ) -> LedgerEntry:
            last = at + timedelta(minutes=until or minute)
            return LedgerEntry("h", at + timedelta(minutes=minute), outcome, reason, until=last)

        idle = entry(0, RunOutcome.SKIPPED, "nothing to do: no watch has fired", until=9)
        for lines, ended in (
            ([], None),
            ([idle], None),
            ([entry(5, RunOutcome.SILENT), idle], True),
            ([entry(5, RunOutcome.COLLECTED)], True),
            ([entry(5, RunOutcome.FAILED), idle], False),
            ([entry(4, RunOutcome.SKIPPED, "no target", until=6)], False),
            ([entry(6, RunOutcome.DELIVERED), idle], False),
            ([entry(4, RunOutcome.DELIVERED)], None),
        ):
            assert outcome_text(lines, at + timedelta(minutes=5)) is ended

    async def test_a_check_in_waits_for_a_channel_that_is_away(self, tmp_path):
        """While the owner's channel cannot be asked nothing is skipped or asked; then the alert comes."""
        async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": f"matrix:{ANN}"}) as home:
            channel = home.built.channels["matrix"]
            channel.away = True
            await home.until(lambda: home.built.supervisor.all_up)
            await home.built.proactive.heartbeat.now()

            async def deferred() -> bool:
                return any(row.deferrals for row in await home.built.store.inbox.rows())

            await home.until(deferred)
            assert home.model.asked == []
            channel.away = False
            await home.until(home.alerts)
        assert [one.text for one in home.alerts()] == ["milk"]


async def test_an_empty_end_of_a_check_in_is_silence(tmp_path):
    """A small model that has nothing to say says nothing; that is no failure."""
    async with house(tmp_path, "", heartbeat=SELDOM) as home:
        await home.asked(ANN, "hello")
        assert await tick(home) == ("silent", "empty")
        assert home.alerts() == []
