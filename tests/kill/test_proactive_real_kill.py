"""
Check-ins and jobs of the real daemon on a real Synapse and a real mail server, killed between tick, run,
delivery and ledger.

Every alert has a number of its own, so a lost and a doubled one are seen on the server. The deaths are seeded:
most strike a moment after the daemon has said how far it is, the others at any time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from agent_core.messages import SessionKey
from channels.heartbeat.channel import NOTHING
from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_service import JobPlace, JobService
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind, LedgerEntry, RunOutcome
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.daemon import email_settings, matrix_settings, one_model
from tests.doubles.openai_server import FakeOpenAI, Say
from tests.kill.conftest import random_kills
from tests.kill.late_daemon import SHIFT_VARIABLE
from tests.kill.proactive_life import PATIENCE_S, Life, ledger_problems, once_each

_, KILLS = random_kills()

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]

EVERY = 0.02  # minutes

DAY_S = 86_400

ITEM = re.compile(r"^\s*- \[ \] (.+)$", re.MULTILINE)

NUMBER = re.compile(r"#(\d+)\b")

JOB = re.compile(r"job (\d+)\b")


class Items(FakeOpenAI):
    """A model that says the open items, word for word, and is silent without any."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = str(body["messages"][-1]["content"])
        return await self._give(Say("\n".join(ITEM.findall(asked)) or "HEARTBEAT_OK"), request, body)


@pytest.fixture(scope="module")
def model() -> Iterator[Items]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Items()) as server:
        yield server


def settings_of(model: Items, owner: str, channels: dict, **heartbeat: object) -> dict:
    return {
        "owner": {"aliases": [owner]},
        "llm": one_model("items", model.api_base),
        "agents": {
            "heartbeat": {"interval_minutes": EVERY, "alert_after_missed": 0, "timezone": "UTC", **heartbeat},
            "schedule": {"misfire": "plain", "timezone": "UTC"},
        },
        "channels": channels,
    }


def test_alerts_and_jobs_on_matrix_over_kills(
    synapse: Synapse,
    model: Items,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """
    Each alert and each job, due while the daemon was dead or alive, is in the owner's room exactly once; each
    check-in has one line in the ledger; each alert stands in the conversation's history once.
    """
    bot, ann = fresh_credentials("bot"), fresh_user("ann")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, encrypt_new_rooms=False)
    settings = settings_of(model, ann.user_id, {"matrix": matrix}, target=f"matrix:{ann.user_id}")
    life = Life(tmp_path / "home", settings, seed=21)
    with life.daemon as daemon:
        life.wants("thing #1")
        daemon.start()
        room = ann.wait_for_invite(60)
        ann.join(room)

        def said() -> list[str]:
            return [event.body for event in ann.history(room, limit=2000) if event.sender == bot.user_id]

        def alerts() -> list[str]:
            return [number for text in said() for number in NUMBER.findall(text)]

        def jobs() -> list[str]:
            return [number for text in said() for number in JOB.findall(text)]

        thing, planned = 1, 0
        while life.deaths < KILLS:
            for _ in range(life.chance.randint(1, 2)):
                life.dies()
                if life.deaths % 2:
                    planned += 1
                    anyio.run(_plan, daemon.home, room, bot.user_id, ann.user_id, planned)
                daemon.start()
            daemon.wait_until(lambda: str(thing) in alerts(), within_s=PATIENCE_S)  # noqa: B023 - awaited here
            thing += 1
            life.wants(f"thing #{thing}")
        daemon.wait_until(lambda: str(thing) in alerts(), within_s=PATIENCE_S)
        daemon.wait_until(lambda: len(set(jobs())) == planned, within_s=PATIENCE_S)
        life.ends()
        assert once_each(alerts(), thing) == [], daemon.log()[-6000:]
        assert sorted(jobs(), key=int) == [str(number + 1) for number in range(planned)]
        histories = [path.read_text() for path in (daemon.home / "sessions").glob("*.jsonl")]
        kept = [NUMBER.findall(text) for text in histories if "#" in text and '"scope":"owner"' in text]
        assert [once_each(numbers, thing) for numbers in kept] == [[]] * 2, "its own, and the owner's"


async def _plan(home: Path, room: str, bot: str, owner: str, number: int) -> None:
    """A job that is due in two seconds, made while nobody runs."""
    clock = SystemClock()
    async with await SqliteQueue.open(open_home(home).database, clock=clock) as store:
        desk = JobService(store.jobs, ScheduleConfig(), zone="UTC", clock=clock)
        place = JobPlace(SessionKey("matrix", room), bot, owner)
        ask = number % 2 == 0
        text, kind = (f"- [ ] job {number}", JobKind.ASK) if ask else (f"job {number}", JobKind.REMIND)
        await desk.add(place, TriggerRequest(in_minutes=2 / 60), text=text, kind=kind)


def test_alerts_by_mail_over_kills(
    mail_server: MailServer, model: Items, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """Without a digest each alert is one mail in the owner's mailbox."""
    bot, ann = fresh_mailbox("bot"), fresh_mailbox("ann")
    mail = email_settings(mail_server, bot.address, bot.password, probe_grace_s=3)
    target = {"target": f"email:{ann.address}", "digest": {"enabled": False}}
    life = Life(tmp_path / "home", settings_of(model, ann.address, {"email": mail}, **target), seed=22)
    with life.daemon as daemon:

        def alerts() -> list[str]:
            return [number for one in ann.list() for number in NUMBER.findall(text_of(one))]

        thing = 1
        life.wants("thing #1")
        daemon.start()
        while life.deaths < KILLS:
            for _ in range(life.chance.randint(1, 2)):
                life.dies()
                daemon.start()
            daemon.wait_until(lambda: str(thing) in alerts(), within_s=PATIENCE_S)  # noqa: B023 - awaited here
            thing += 1
            life.wants(f"thing #{thing}")
        daemon.wait_until(lambda: str(thing) in alerts(), within_s=PATIENCE_S)
        life.ends()
        assert once_each(sorted(alerts(), key=int), thing) == [], daemon.log()[-6000:]
        assert len(ann.list()) == thing


def test_a_digest_by_mail_over_kills(
    mail_server: MailServer, model: Items, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """Each day's alerts are one mail on the next day, urgent ones come at once and are in no digest; once each."""
    bot, ann = fresh_mailbox("bot"), fresh_mailbox("ann")
    mail = email_settings(mail_server, bot.address, bot.password, probe_grace_s=3)
    target = {"target": f"email:{ann.address}", "digest": {"at": "00:00"}}
    life = Life(tmp_path / "home", settings_of(model, ann.address, {"email": mail}, **target), seed=23)
    days = max(1, KILLS // 10)
    with life.daemon as daemon:
        daemon.module = "tests.kill.late_daemon"
        shift = DAY_S // 2 - int(time.time()) % DAY_S  # noon, so that no midnight passes by itself

        def mails() -> list[list[str]]:
            return sorted((NUMBER.findall(text_of(one)) for one in ann.list()), key=lambda one: int(one[0]))

        def waiting() -> int:
            return int(daemon.asked("/status")[1].get("heartbeat", {}).get("collected", -1))

        def start() -> None:
            daemon.environment = {SHIFT_VARIABLE: str(shift)}
            daemon.start()

        thing, wanted = 0, []
        start()
        for _ in range(days):
            collected = []
            for number in range(2):
                thing += 1
                collected.append(str(thing))
                life.wants(f"thing #{thing}")
                life.dies()
                start()
                daemon.wait_until(lambda: waiting() == number + 1, within_s=PATIENCE_S)  # noqa: B023 - awaited
            thing += 1
            life.wants(f"URGENT: thing #{thing}")
            life.dies()
            start()
            daemon.wait_until(lambda: [str(thing)] in mails(), within_s=PATIENCE_S)  # noqa: B023 - awaited
            assert collected not in mails()
            life.wants()
            wanted += [collected, [str(thing)]]
            shift += DAY_S
            life.dies()
            start()
            life.dies()
            start()
            daemon.wait_until(lambda: collected in mails(), within_s=PATIENCE_S)  # noqa: B023 - awaited
        life.ends()
        assert mails() == wanted, daemon.log()[-6000:]
        assert life.at_rest()[2] == 0


def test_the_same_comparison_finds_alerts_that_come_again(
    mail_server: MailServer, model: Items, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """A negative control on the same servers: told to repeat itself, a daemon over a kill is found out."""
    bot, ann = fresh_mailbox("bot"), fresh_mailbox("ann")
    mail = email_settings(mail_server, bot.address, bot.password, probe_grace_s=3)
    target = {"target": f"email:{ann.address}", "digest": {"enabled": False}, "dedupe_hours": 0.0}
    life = Life(tmp_path / "home", settings_of(model, ann.address, {"email": mail}, **target), seed=24)
    with life.daemon as daemon:

        def alerts() -> list[str]:
            return [number for one in ann.list() for number in NUMBER.findall(text_of(one))]

        life.wants("thing #1")
        daemon.start()
        life.dies()
        daemon.start()
        daemon.wait_until(lambda: len(alerts()) > 1, within_s=PATIENCE_S)
        [found] = once_each(alerts(), 1)
    assert re.fullmatch(r"#1 came \d+ times", found)


def test_the_judgement_sees_each_kind_of_wrong() -> None:
    """Negative controls of what is compared above."""
    assert once_each(["1", "2"], 2) == []
    assert once_each(["1"], 2) == ["#2 came 0 times"]
    assert once_each(["1", "2", "2"], 2) == ["#2 came 2 times"]
    assert once_each(["2", "1"], 2) == ["out of order"]
    assert once_each(["1", "2", "3"], 2) == ["#3 was never meant"]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    line = LedgerEntry("heartbeat", at, RunOutcome.DELIVERED)
    assert ledger_problems([(at, "settled")], [line]) == []
    idle, rests = (
        LedgerEntry("heartbeat", at, RunOutcome.SKIPPED, why) for why in (f"{NOTHING}: x", "resting")
    )
    assert ledger_problems([(at, "settled")], [rests, idle]) == []
    assert ledger_problems([(at, "settled")], [idle]) == [f"{at} has the lines []"]
    assert ledger_problems([(at, "settled")], [line, rests]) == [
        f"{at} has the lines ['delivered', 'resting']"
    ]
    assert ledger_problems([(at, "settled")], []) == [f"{at} has the lines []"]
    assert ledger_problems([(at, "settled")], [line, line]) == [
        f"{at} has the lines ['delivered', 'delivered']"
    ]
    assert ledger_problems([(at, "settled")] * 2, [line]) == [f"{at} is in the inbox twice"]
    assert ledger_problems([(at, "ready")], [line]) == [f"{at} is ready"]
    assert ledger_problems([], [line]) == ["there was no check-in"]
