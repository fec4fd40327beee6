"""``squidbot cron``, ``heartbeat`` and ``usage`` as a person types them, on a home folder at rest."""

from __future__ import annotations

import json
from datetime import datetime

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.operations.render.schedule_text import summary_lines
from gateway.store.model import LedgerEntry, RunOutcome
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Pending
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests import command_line
from tests.clock import EPOCH
from tests.inbound import inbound

CONFIG = "owner: {aliases: ['@a:hs.test']}\nagents: {heartbeat: {enabled: false}}\n"
PLACE = SessionKey("matrix", "!dm:hs.test")


def squidbot(home, *commands):
    """Exit code and text of each."""
    ended = [command_line.squidbot(home, *words) for words in commands]
    return [(done.returncode, done.stdout + done.stderr) for done in ended]


@pytest.fixture
def home(tmp_path):
    """A home in which the owner has said something once, and what came of it."""
    opened = open_home(tmp_path / "home")
    (opened.root / "squidbot.yaml").write_text(CONFIG)
    (opened.root / "squidbot.yaml").chmod(0o600)
    message = inbound(PLACE, "@a:hs.test", "hello", "$1", account="@bot:hs.test")

    async def fill() -> None:
        async with await SqliteQueue.open(opened.database, clock=SystemClock()) as store:
            await store.inbox.accept("matrix", "@bot:hs.test", [Pending(message)], {})
            await store.jobs.note(
                LedgerEntry("heartbeat", EPOCH, RunOutcome.SILENT, "all clear", tokens=775, calls=1)
            )
            for purpose, tokens in ((Purpose.CHAT, 900), (Purpose.HEARTBEAT, 100)):
                usage = Usage(prompt_tokens=tokens, completion_tokens=10, calls=1, model="small")
                await store.usage.add(PLACE, usage, purpose)

    anyio.run(fill)
    return opened.root


def test_the_life_of_a_job(home):
    """Added, listed, paused, resumed, told to run, removed; each with an answer that a person can read."""
    (code, added), (_, listed) = squidbot(
        home,
        ["cron", "add", "stand up", "--every", "1h", "--session", str(PLACE)],
        ["cron", "list", "--json"],
    )
    [job] = json.loads(listed)["jobs"]
    assert code == 0
    assert job["id"] in added
    assert [job[name] for name in ("text", "when", "person", "state")] == [
        *("stand up", "every hour", "@a:hs.test", "active")
    ]
    told = squidbot(
        home,
        *(["cron", word, job["id"]] for word in ("pause", "resume", "run", "remove")),
        ["cron", "list", "--all", "--json"],
    )
    assert [code for code, _ in told] == [0] * 5
    paused, resumed, run, removed, listed = (text.strip() for _, text in told)
    assert "paused" in paused
    assert "paused" not in resumed
    assert run == f"{job['id']} runs at the next start of squidbot"
    assert removed == f"{job['id']} is removed"
    assert json.loads(listed)["jobs"] == []


def test_times_are_in_the_configured_zone_and_say_so(home):
    """For people with the zone's name, for programs with its offset; the log of this process follows."""
    (home / "squidbot.yaml").write_text(f"timezone: Asia/Kolkata\n{CONFIG}")
    (_, added), (_, listed) = squidbot(
        home,
        ["cron", "add", "bins", "--every", "2 weeks on monday 18:00", "--session", str(PLACE)],
        ["cron", "list", "--json"],
    )
    [job] = json.loads(listed)["jobs"]
    assert job["when"] == "every 2 weeks on Monday at 18:00 (Asia/Kolkata)"
    assert "18:00:00 IST" in added
    assert job["next"].endswith("18:00:00 IST")
    assert job["next_at"].endswith("T18:00:00+05:30")
    assert job["timezone"] == "Asia/Kolkata"


def test_what_cannot_be_is_said_in_a_sentence(home):
    """A code that scripts see, and one line without a trace."""
    wrong = (
        (("cron", "add", "x", "--at", "2020-01-01 09:00", "--session", str(PLACE)), "is in the past"),
        (("cron", "add", "x", "--cron", "0 9 30 2 *", "--session", str(PLACE)), "is not a cron expression"),
        (("cron", "add", "x", "--at", "09:00"), "write to me directly first"),
        (("cron", "add", "x"), "exactly one of --at, --in, --every, --cron and --hook"),
        (
            ("cron", "add", "x", "--in", "2h", "--every", "1h"),
            "exactly one of --at, --in, --every, --cron and --hook",
        ),
        (("cron", "run", "nope"), "there is no job"),
        (("heartbeat", "now"), "no heartbeat is running"),
    )
    for (code, said), (_, why) in zip(squidbot(home, *(words for words, _ in wrong)), wrong, strict=True):
        assert code not in (0, None)
        assert said.startswith("squidbot: ")
        assert why in said
        assert said.count("\n") == 1


def test_the_ledger_and_what_it_has_cost(home):
    """When check-ins have run, why, for how much; and tokens by day, purpose, session and model, with a chart."""
    ways = ("day", "purpose", "session", "model")
    (_, kept), (_, log), *usage = squidbot(
        home,
        ["heartbeat", "log", "--json"],
        ["heartbeat", "log"],
        *(["usage", "--by", by] for by in ways),
    )
    [line] = json.loads(kept)["entries"]
    assert (line["outcome"], line["reason"], line["tokens"]) == ("silent", "all clear", 775)
    assert "775 tokens, 1 call, " in log
    assert "all clear" in log
    shown = dict(zip(ways, (text for _, text in usage), strict=True))
    for by, names in (
        ("purpose", ("chat", "heartbeat")),
        ("session", ("@a:hs.test",)),
        ("model", ("small",)),
    ):
        assert all(any(line.startswith(name) for line in shown[by].splitlines()) for name in names)
    assert len([line for line in shown["day"].splitlines() if line.startswith("20")]) == 1  # none before it
    assert all("█" in text and "1,020 tokens in 30 days" in text for text in shown.values())


def test_times_are_those_of_the_clock_on_the_wall():
    """As in the rest of ``status``; before the first check-in nothing is said to have been the last."""
    last = {"at": "2026-01-02T14:30:00.070Z", "outcome": "silent", "reason": ""}
    heartbeat = {"enabled": True, "last": last, "next": "2026-01-02T15:00:00Z"}
    wall = [
        datetime.fromisoformat(at).astimezone() for at in ("2026-01-02T14:30:00Z", "2026-01-02T15:00:00Z")
    ]
    [before, after] = [f"{at:%Y-%m-%d %H:%M:%S}" for at in wall]

    assert summary_lines({"heartbeat": heartbeat}) == [f"check-ins  last {before} silent; next {after}"]
    assert summary_lines({"heartbeat": {**heartbeat, "last": None}}) == [f"check-ins  none yet; next {after}"]
