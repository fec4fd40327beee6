"""Check-ins through the whole gateway: what is said, to whom, what is kept of it, and what failures lead to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from agent_core.messages import OutboundKind, SessionKey
from agent_core.models import ToolCall
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext
from gateway.store.model import LedgerEntry
from gateway.turns.heartbeat_turn import HeartbeatTurns
from tests.clock import ManualClock
from tests.proactive_world import ANN, ANN_MAIL, BOB, house

SELDOM = {"interval_minutes": 600.0}
THINKS = "<think>Is the milk out? Let me see.</think>Let me check the list.\nThe milk is out."


async def tick(home) -> tuple[str, str]:
    """One check-in now; outcome and reason."""
    await home.until(lambda: home.built.supervisor.all_up)
    instant, found = await home.built.proactive.heartbeat.now()
    if not found.text:
        return "skipped", found.reason
    entries: list[LedgerEntry] = []

    async def noted() -> bool:
        lines = await home.plans.ledger(name="heartbeat")
        entries[:] = [one for one in lines if one.instant <= instant <= (one.until or one.instant)]
        return bool(entries)

    await home.until(noted)
    return entries[0].outcome.value, entries[0].reason


@pytest.mark.smoke
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
    assert [role for role, _ in shown] == ["user", "assistant", "user", "assistant"]
    assert shown[2][1].endswith("nobody wrote; this came by itself:]")
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
    """The control: with dedupe_hours 0 the same words come each time."""
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "dedupe_hours": 0.0}) as home:
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
            return await home.built.proactive.owner_contact.get() is None

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


async def test_the_owner_who_has_never_written_is_told_too(tmp_path):
    """In a conversation that the bot begins."""
    async with house(tmp_path, "milk", heartbeat=SELDOM) as home:
        assert await tick(home) == ("delivered", "")
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
        (f"matrix:{BOB}", "the target is not one of the owner's addresses"),
        ("sms:@ann:hs.test", "the channel of the target, sms, does not exist"),
        ("matrix:!room:hs.test", "somebody else can read along in the target's room"),
    ],
)
async def test_no_target_is_a_reason_in_the_ledger_and_costs_nothing(tmp_path, target, why):
    """Skipped before a model is asked, with a reason that is shown."""
    whose = {} if target else {"owner": ()}
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": target}, **whose) as home:
        outcome, reason = await tick(home)
        state = await home.built.proactive.state()
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
            await home.built.proactive.monitor.check_once()
            assert len(home.mail.delivered) == 1
            assert "URGENT" in home.model.asked[-1][-1].content
            mail = home.mail
        clock.advance(22 * 3600)
        async with house(tmp_path, heartbeat=self.SETTING, clock=clock, mail=mail, checklist="") as home:
            await home.built.proactive.monitor.check_once()
            await mail.answers(2)
            await home.built.proactive.monitor.check_once()
            assert await home.plans.list_collected_alerts() == []
            clock.advance(86_400)
            await home.built.proactive.monitor.check_once()
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
            await home.built.proactive.monitor.check_once()
            await home.mail.answers(1)
            key = await home.built.channels["email"].direct_session(
                ANN_MAIL, topic="digest 2026-05-01T08:00:00Z"
            )
            await home.until(lambda: _lines(home, key))
            [line] = await _lines(home, key)
        assert (line.role, line.content, line.scope) == ("assistant", "milk is out", "owner")

    async def test_files_are_not_lost_in_a_digest(self, tmp_path):
        """An alert with a file does not wait: a digest could not hold it."""
        call = ToolCall(id="c", name="send_file", arguments={"path": "report.txt"})
        says = [call, call, "The report is there."]  # the first one loads it
        async with house(tmp_path, *says, heartbeat=self.SETTING) as home:
            (home.checklist.parent / "report.txt").write_text("all the figures")
            assert (await tick(home))[0] == "delivered"
            [mail] = await home.mail.answers(1)
            assert await home.plans.list_collected_alerts() == []
        assert mail.text == "The report is there."
        assert [one.name for one in mail.attachments] == ["report.txt"]

    async def test_an_address_that_is_not_the_owners_any_more_gets_no_digest(self, tmp_path):
        """What was collected for it goes to where the owner is reached now, once; nothing is lost."""
        clock = ManualClock(datetime(2026, 5, 1, 7, 59, tzinfo=UTC))
        async with house(tmp_path, "milk is out", heartbeat=self.SETTING, clock=clock) as home:
            assert (await tick(home))[0] == "collected"
            mail = home.mail
        clock.advance(120)
        only_chat = {**SELDOM, "digest": {"at": "08:00"}}
        owner = (("matrix", ANN),)
        async with house(
            tmp_path, heartbeat=only_chat, clock=clock, mail=mail, checklist="", owner=owner
        ) as home:
            for _ in range(2):
                await home.built.proactive.monitor.check_once()
            await home.until(home.alerts)
            assert await home.plans.list_collected_alerts() == []
        assert [(one.conversation, one.text) for one in home.alerts()] == [(f"dm-{ANN}", "milk is out")]
        assert mail.delivered == []

    async def test_without_a_digest_each_alert_is_a_mail(self, tmp_path):
        """The control: switched off, nothing waits."""
        setting = {**self.SETTING, "digest": {"enabled": False}}
        async with house(tmp_path, "milk", "bread", heartbeat=setting) as home:
            assert [(await tick(home))[0] for _ in range(2)] == ["delivered", "delivered"]
            await home.mail.answers(2)


async def _lines(home, key: SessionKey):
    return (await home.built.memory.load_history(str(key))).messages


class TestNow:
    async def test_now_and_dry_run(self, tmp_path):
        """A dry run shows the question and changes nothing; now does it and tells the end."""
        async with house(tmp_path, "The milk is out.", heartbeat=SELDOM) as home:
            await home.asked(ANN, "hello")
            operations = OperationContext(
                home.built.store,
                home.built.memory,
                planned=schedule_context(home.built.proactive, home.built.conversations),
            )
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
            assert await tick(home) == ("skipped", "nothing to do: no watch has fired")
            (home.checklist.parent / "inbox").mkdir()
            assert await tick(home) == ("delivered", "")
            assert await tick(home) == ("skipped", "nothing to do: no watch has fired")
            await home.until(home.alerts)
        assert "inbox has changed." in home.alerts()[0].text
        # What a watch has found may be anybody's words: a file's name, what a program prints.
        histories = "".join(path.read_text() for path in tmp_path.rglob("sessions/matrix*.jsonl"))
        assert '"kind":"shell","where":"a watch"' in histories


def waits(root) -> list[tuple[str, str | None]]:
    """What waits, and the link that it waits for."""
    with closing(sqlite3.connect(f"file:{root}/gateway.db?mode=ro", uri=True)) as db:
        return db.execute("SELECT channel, waits_for FROM inbox WHERE state = 'ready'").fetchall()


async def test_a_check_in_waits_for_the_link_of_its_target(tmp_path):
    """It is due when the owner's homeserver is back, and not after its back-off."""
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": f"matrix:{ANN}"}) as home:
        await home.until(lambda: home.built.supervisor.all_up)
        channel = home.built.proactive.owner_contact.channels["matrix"]
        channel.away = True
        await home.built.proactive.heartbeat.now()
        found = []

        def waiting() -> bool:
            found[:] = waits(tmp_path)
            return bool(found and found[0][1])

        await home.until(waiting)
        channel.away = False
        await home.built.store.maintenance.due_now("link:matrix")  # as when the link comes up
        await home.until(home.alerts)
    assert found == [("heartbeat", "link:matrix")]


async def test_a_target_that_stays_away_is_no_failure_of_check_ins(tmp_path, monkeypatch):
    """After its patience a check-in is skipped with the reason; skipped ones make the next ones rest never."""
    monkeypatch.setattr(HeartbeatTurns, "_patience_s", 0.0)
    async with house(tmp_path, "milk", heartbeat={**SELDOM, "target": f"matrix:{ANN}"}) as home:
        await home.until(lambda: home.built.supervisor.all_up)
        channel = home.built.proactive.owner_contact.channels["matrix"]
        channel.away = True
        ends = [await tick(home) for _ in range(4)]
        channel.away = False
        assert await tick(home) == ("delivered", "")
    assert ends == [("skipped", "the target's channel does not answer at the moment")] * 4
