"""Check-ins through the whole gateway: what is said, to whom, what is kept of it, and what failures lead to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_core.errors import ModelRefused
from agent_core.messages import OutboundKind, SessionKey
from agent_core.models import ToolCall
from gateway.operations import Operations
from gateway.ticks import failing_since, resting_until
from gateway.vigil import how_ended
from gateway.work.plan_port import Entry, Outcome
from tests.clock import ManualClock
from tests.unasked_world import ANN, ANN_MAIL, BOB, house

SELDOM = {"interval_minutes": 600.0}
THINKS = "<think>Is the milk out? Let me see.</think>Let me check the list.\nThe milk is out."


async def tick(home) -> tuple[str, str]:
    """One check-in now; outcome and reason."""
    await home.until(lambda: home.built.supervisor.all_up)
    instant, found = await home.built.unasked.heartbeat.now()
    if not found.text:
        return "skipped", found.reason
    entries: list[Entry] = []

    async def noted() -> bool:
        lines = await home.plans.ledger(name="heartbeat")
        entries[:] = [one for one in lines if one.instant <= instant <= (one.until or one.instant)]
        return bool(entries)

    await home.until(noted)
    return entries[0].outcome.value, entries[0].reason


async def test_an_alert_is_in_the_conversation_where_it_is_read_and_nothing_else_is(tmp_path):
    """ "What did you mean?" finds the alert before it; the check-in's own lines and silence are not there."""
    async with house(tmp_path, "HEARTBEAT_OK", THINKS, heartbeat=SELDOM) as home:
        await home.asked(ANN, "hello")
        assert await tick(home) == ("silent", "nothing to say")
        assert await tick(home) == ("delivered", "")
        await home.chat.answers(2, conversation=f"dm-{ANN}")
        await home.asked(ANN, "what did you mean?")
    assert [one.text for one in home.chat.seen(f"dm-{ANN}")][1] == "The milk is out."
    assert home.chat.seen(f"dm-{ANN}")[1].kind is OutboundKind.ALERT
    shown = [(one.role, one.content) for one in home.model.asked[-1][1:-1]]
    assert [role for role, _ in shown] == ["user", "assistant", "assistant"]
    assert shown[-1] == ("assistant", "The milk is out.")
    assert "check-in" not in str(shown)


async def test_the_same_alert_comes_once_and_a_growing_one_again(tmp_path):
    """Within the settable time an alert is not repeated; with one more item it is another alert."""
    says = ["- milk is out", "* **Milk** is out!", "- milk is out\n- bread is out", "- milk is out"]
    async with house(tmp_path, *says, heartbeat=SELDOM) as home:
        await home.asked(ANN, "hello")
        ends = [await tick(home) for _ in says]
    assert [outcome for outcome, _ in ends] == ["delivered", "silent", "delivered", "silent"]
    assert ends[1][1] == "said already"


async def test_without_that_time_every_alert_comes(tmp_path):
    """The control: with repeat_after_hours 0 the same words come each time."""
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "repeat_after_hours": 0.0}) as home:
        await home.asked(ANN, "hello")
        assert [await tick(home) for _ in range(2)] == [("delivered", "")] * 2


@pytest.mark.parametrize("says", ["x" * 50_000, "<think>" + "y" * 50_000, "   "])
async def test_strange_answers_end_a_check_in(tmp_path, says):
    """Fifty thousand characters, only reasoning, nothing: an alert of a few pages or silence, never a loop."""
    async with house(tmp_path, says, heartbeat=SELDOM) as home:
        await home.asked(ANN, "hello")
        outcome, _ = await tick(home)
        await home.until(lambda: outcome != "delivered" or home.alerts())
    assert sum(len(one.text) for one in home.alerts()) < 7000


async def test_a_third_person_in_the_room_ends_the_alerts_there(tmp_path):
    """From then on check-ins are skipped with the reason, before a model is asked."""
    async with house(tmp_path, "secret", heartbeat=SELDOM) as home:
        await home.asked(ANN, "hello")
        home.chat.groups.add(f"dm-{ANN}")
        asked = len(home.model.asked)
        assert await tick(home) == ("skipped", "somebody else can read along in the owner's conversation")
        assert len(home.model.asked) == asked
        home.chat.say(ANN, "hello all")
        await home.until(lambda: len(home.chat.seen(f"dm-{ANN}")) == 2)

        async def forgotten() -> bool:
            return await home.built.unasked.target.get() is None

        await home.until(forgotten)
    assert home.alerts() == []


async def test_who_wrote_last_is_never_the_target(tmp_path):
    """Others write later, directly and in rooms: the alert goes to the owner."""
    async with house(tmp_path, "milk", heartbeat=SELDOM, groups=["room"]) as home:
        await home.asked(ANN, "hello")
        await home.asked(BOB, "hello")
        await home.asked(ANN, "hello", conversation="room")
        await tick(home)
        await home.until(home.alerts)
    assert [one.conversation for one in home.alerts()] == [f"dm-{ANN}"]


async def test_a_target_by_setting_needs_no_message_before(tmp_path):
    """The owner who has never written is reached where the settings say."""
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": f"matrix:{ANN}"}) as home:
        assert await tick(home) == ("delivered", "")
        await home.until(home.alerts)
    assert [one.conversation for one in home.alerts()] == [f"dm-{ANN}"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "the owner has no direct conversation yet"),
        (f"matrix:{BOB}", "the target is none of the owner's addresses"),
        ("sms:@ann:hs.test", "the channel of the target, sms, is not there"),
        ("matrix:!room:hs.test", "in the target's room somebody else could read along"),
    ],
)
async def test_no_target_is_a_reason_in_the_ledger_and_costs_nothing(tmp_path, target, why):
    """Skipped before a model is asked, with a reason that is shown."""
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": target}) as home:
        outcome, reason = await tick(home)
        state = await home.built.unasked.state()
    assert outcome == "skipped"
    assert reason.startswith(why)
    assert state["heartbeat"]["last"]["reason"] == reason
    assert home.model.asked == []


class TestDigest:
    SETTING = {**SELDOM, "target": f"email:{ANN_MAIL}", "digest": {"at": "08:00"}}  # noqa: RUF012

    async def test_alerts_by_mail_are_one_mail_a_day_and_urgent_ones_come_at_once(self, tmp_path):
        """Two alerts wait over a restart and are one mail at the hour; what is urgent does not wait."""
        clock = ManualClock(datetime(2026, 5, 1, 9, tzinfo=UTC))
        says = ["milk is out", "URGENT: the house burns", "bread is out"]
        async with house(tmp_path, *says, heartbeat=self.SETTING, clock=clock) as home:
            assert (await tick(home))[0] == "collected"
            clock.advance(3600)
            assert (await tick(home))[0] == "delivered"
            await home.mail.answers(1)
            clock.advance(3600)
            assert (await tick(home))[0] == "collected"
            await home.built.unasked.vigil.look()
            assert len(home.mail.delivered) == 1
            assert "URGENT" in home.model.asked[-1][-1].content
            mail = home.mail
        clock.advance(22 * 3600)
        async with house(tmp_path, heartbeat=self.SETTING, clock=clock, mail=mail, checklist=None) as home:
            await home.built.unasked.vigil.look()
            await mail.answers(2)
            await home.built.unasked.vigil.look()
            assert await home.plans.collected() == []
            clock.advance(86_400)
            await home.built.unasked.vigil.look()
        assert mail.delivered[0].text == "the house burns"
        assert len(mail.delivered) == 2
        assert mail.delivered[1].text.startswith("2 things since the last mail:")
        assert "milk is out" in mail.delivered[1].text
        assert "bread is out" in mail.delivered[1].text

    async def test_each_mail_is_a_conversation_of_its_own_that_knows_it(self, tmp_path):
        """The digest stands in the history of the thread that it begins."""
        clock = ManualClock(datetime(2026, 5, 1, 7, 59, tzinfo=UTC))
        async with house(tmp_path, "milk is out", heartbeat=self.SETTING, clock=clock) as home:
            await tick(home)
            clock.advance(120)
            await home.built.unasked.vigil.look()
            await home.mail.answers(1)
            key = await home.built.channels["email"].direct_session(
                ANN_MAIL, topic="digest 2026-05-01T08:00:00Z"
            )
            await home.until(lambda: _lines(home, key))
            [line] = await _lines(home, key)
        assert (line.role, line.content, line.scope) == ("assistant", "milk is out", "owner")

    async def test_without_a_digest_each_alert_is_a_mail(self, tmp_path):
        """The control: switched off, nothing waits."""
        setting = {**self.SETTING, "digest": {"enabled": False}}
        async with house(tmp_path, "milk", "bread", heartbeat=setting) as home:
            assert [(await tick(home))[0] for _ in range(2)] == ["delivered", "delivered"]
            await home.mail.answers(2)


async def _lines(home, key: SessionKey):
    return (await home.built.memory.load_history(str(key))).messages


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

        def line(outcome: Outcome, ago: timedelta) -> Entry:
            return Entry("heartbeat", now - ago, outcome, "no", at=now - ago)

        failed = [line(Outcome.FAILED, timedelta(0))]
        assert resting_until(failed, now, step) is None
        for count, rest in ((2, 1), (3, 2), (4, 4), (30, 12)):
            assert resting_until(failed * count, now, step) == now + timedelta(hours=rest)
        skipped = [line(Outcome.SKIPPED, timedelta(0))]
        assert resting_until(skipped + failed * 2, now, step) is not None
        assert resting_until([line(Outcome.SILENT, timedelta(0)), *failed * 5], now, step) is None
        assert resting_until([line(Outcome.FAILED, -step)] * 3, now, step) is None
        assert len(failing_since(failed * 3 + [line(Outcome.SILENT, step)] + failed)) == 3

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

    async def test_the_dead_mans_notice_comes_once(self, tmp_path):
        """When nothing has worked for so many intervals the owner is told, once, and again only after life."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "dead_man_intervals": 4}
        async with house(tmp_path, heartbeat=setting, clock=clock, sleep=_never) as home:
            await home.asked(ANN, "hello")
            look = home.built.unasked.vigil.look
            await look()
            clock.advance(1.5 * 3600)
            await look()
            assert home.alerts() == []
            clock.advance(3600)
            for _ in range(3):
                await look()
            await home.chat.answers(2)
            await home.plans.note(Entry("heartbeat", clock.now(), Outcome.SILENT))
            clock.advance(3 * 3600)
            await look()
            await home.chat.answers(3)
        assert len(home.alerts()) == 2
        assert "have not worked since Thu 2026-01-01 00:00, 4 of them or more" in home.alerts()[0].text

    async def test_a_machine_that_was_off_tells_it_at_its_start(self, tmp_path):
        """After a night off there is one notice, and after a short pause none."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "dead_man_intervals": 4, "target": f"matrix:{ANN}"}
        async with house(tmp_path, heartbeat=setting, clock=clock, checklist=None, sleep=_never) as home:
            await home.until(lambda: home.built.supervisor.all_up)
            chat = home.chat
        for hours, notices in ((1, 0), (9, 1), (0.6, 1)):
            clock.advance(hours * 3600)
            async with house(
                tmp_path, heartbeat=setting, clock=clock, checklist=None, chat=chat, sleep=_never
            ) as home:
                await home.until(lambda: _noted(home, clock))
                await home.until(lambda: bool(home.alerts()) or not notices)  # noqa: B023 - awaited here
                assert len(home.alerts()) == notices
        assert "have not run (17 of them)" in home.alerts()[0].text

    async def test_what_was_missed_is_told_as_soon_as_there_is_a_place(self, tmp_path):
        """Without a conversation at that start it waits, also over another start, is shown, and comes once."""
        clock = ManualClock()
        setting = {"interval_minutes": 30.0, "dead_man_intervals": 4}
        async with house(tmp_path, heartbeat=setting, clock=clock, checklist=None, sleep=_never) as home:
            await home.until(lambda: home.built.supervisor.all_up)
        clock.advance(9 * 3600)
        async with house(tmp_path, heartbeat=setting, clock=clock, checklist=None, sleep=_never) as home:
            await home.until(lambda: _noted(home, clock))
        clock.advance(600)
        async with house(tmp_path, heartbeat=setting, clock=clock, checklist=None, sleep=_never) as home:

            async def shown() -> bool:
                return (await home.built.unasked.state())["owner"]["alerts_waiting"] == 1

            await home.until(shown)
            await home.asked(ANN, "hello")
            await home.until(home.alerts)
            assert not await shown()
        assert ["have not run (17 of them)" in one.text for one in home.alerts()] == [True]


async def _never(_: float) -> None:
    import anyio

    await anyio.sleep_forever()


async def _noted(home, clock) -> bool:
    entries = await home.plans.ledger(name="heartbeat")
    return bool(entries) and clock.now() - (entries[0].until or entries[0].instant) < timedelta(minutes=31)


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
        """Two changes are seen before the owner has ever written; the first check-in that can tell, tells both."""
        watch = {**SELDOM, "watch": [{"file": "inbox"}, {"file": "notes"}]}
        async with house(tmp_path, "Two things.", heartbeat=watch, checklist=None) as home:
            assert (await tick(home))[0] == "skipped"
            (home.checklist.parent / "inbox").mkdir()
            assert await tick(home) == ("skipped", "the owner has no direct conversation yet")
            (home.checklist.parent / "notes").mkdir()
            assert await tick(home) == ("skipped", "the owner has no direct conversation yet")
            await home.asked(ANN, "hello")
            assert (await tick(home))[0] == "delivered"
            assert (await tick(home)) == ("skipped", "nothing to do: no watch calls")
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
            await home.built.unasked.heartbeat.now()
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

        def entry(minute: int, outcome: Outcome, reason: str = "", until: int | None = None) -> Entry:
            last = at + timedelta(minutes=until or minute)
            return Entry("h", at + timedelta(minutes=minute), outcome, reason, until=last)

        idle = entry(0, Outcome.SKIPPED, "nothing to do: no watch calls", until=9)
        for lines, ended in (
            ([], None),
            ([idle], None),
            ([entry(5, Outcome.SILENT), idle], True),
            ([entry(5, Outcome.COLLECTED)], True),
            ([entry(5, Outcome.FAILED), idle], False),
            ([entry(4, Outcome.SKIPPED, "no target", until=6)], False),
            ([entry(6, Outcome.DELIVERED), idle], False),
            ([entry(4, Outcome.DELIVERED)], None),
        ):
            assert how_ended(lines, at + timedelta(minutes=5)) is ended

    async def test_a_check_in_waits_for_a_channel_that_is_away(self, tmp_path):
        """While the owner's channel cannot be asked nothing is skipped or asked; then the alert comes."""
        async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": f"matrix:{ANN}"}) as home:
            channel = home.built.channels["matrix"]
            channel.away = True
            await home.until(lambda: home.built.supervisor.all_up)
            await home.built.unasked.heartbeat.now()

            async def deferred() -> bool:
                return any(row.deferrals for row in await home.built.store.inbox())

            await home.until(deferred)
            assert home.model.asked == []
            channel.away = False
            await home.until(home.alerts)
        assert [one.text for one in home.alerts()] == ["milk"]


class TestNow:
    async def test_now_and_dry_run(self, tmp_path):
        """A dry run shows the question and changes nothing; now does it and tells the end."""
        async with house(tmp_path, "The milk is out.", heartbeat=SELDOM) as home:
            await home.asked(ANN, "hello")
            operations = Operations(home.built.store, home.built.memory, planned=home.built.unasked.planned())
            dry = await operations.call("heartbeat_now", {"dry_run": True})
            assert (dry["outcome"], home.model.ticks) == ("would ask", 0)
            assert "buy milk" in dry["prompt"]
            assert await home.plans.ledger() == []
            done = await operations.call("heartbeat_now", {})
            assert (done["outcome"], done["calls"], home.model.ticks) == ("delivered", 1, 1)
            await home.until(home.alerts)
            home.checklist.write_text("- [x] buy milk\n")
            idle = await operations.call("heartbeat_now", {})
            assert (idle["outcome"], idle["reason"]) == (
                "skipped",
                "nothing to do: HEARTBEAT.md asks for nothing",
            )
            log = await operations.call("heartbeat_log", {})
        assert [row["outcome"] for row in log["entries"]] == ["delivered"]

    async def test_a_watch_decides(self, tmp_path):
        """With a watch the open items alone ask nobody; a change in the folder does, and is told."""
        watch = {**SELDOM, "watch": [{"file": "inbox"}]}
        async with house(tmp_path, heartbeat=watch) as home:
            await home.asked(ANN, "hello")
            assert await tick(home) == ("skipped", "nothing to do: no watch calls")
            (home.checklist.parent / "inbox").mkdir()
            assert await tick(home) == ("delivered", "")
            assert await tick(home) == ("skipped", "nothing to do: no watch calls")
            await home.until(home.alerts)
        assert "inbox has changed." in home.alerts()[0].text
