"""The status page: what it shows, what it never shows, and that nothing can be put into it."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from datetime import timedelta
from html.parser import HTMLParser

import aiohttp
import pytest
from pydantic import ValidationError

from gateway.operations.http.charts import ChartLine, ceiling, chart
from gateway.operations.http.health import Health, serve
from gateway.operations.http.samples import Counters, DayHistory
from gateway.operations.http.status_page import StatusPage, render
from gateway.queue.stores import StoreStats, StoreUnavailable
from gateway.settings import HttpSettings
from tests.clock import EPOCH, ManualClock

DAY = timedelta(days=1)


def report(**more):
    """What `Operations.status` gives."""
    channel = {
        "account": "@bot:hs.test", "state": "up", "since": "2026-01-01T00:00:00+00:00", "restarts": 2,
        "detail": "", "last_error": "",
    }  # fmt: skip
    return {
        "version": "1.2.3",
        "uptime_s": 90_000.0,
        "memory_mb": 81.5,
        "channels": {"matrix": channel, "email": {**channel, "account": "bot@mail.test", "state": "down"}},
        "work": {
            "inbox": {"ready": 3, "settled": 1200, "dead": 0},
            "outbox": {"sent": 1250, "pending": 1},
            "oldest_unanswered_s": 75.0,
            "oldest_unsent_s": None,
        },
        "stuck": [{"what": "not sent", "inbox": 17, "name": "17", "channel": "email", "why": None}],
        **more,
    }


def _wave(number, height):
    """A whole number from 0 to ``height`` that goes up and down."""
    return round(height * (0.5 + 0.3 * math.sin(number / 23) + 0.2 * math.sin(number / 5)))


async def day(hours=24):
    """A history of so many hours with something to see."""
    clock = ManualClock(EPOCH)
    totals = [0.0, 0.0, 0.0, 0.0]

    async def stats():
        number = int((clock.now() - EPOCH).total_seconds() // 300)
        return StoreStats(
            {"ready": _wave(number, 5), "settled": 9}, {"pending": _wave(number + 9, 2)}, None, None, 0
        )

    history = DayHistory(stats, clock, counters=lambda: Counters(*totals))
    for number in range(hours * 12):
        clock.advance(300)
        turns = 0 if 60 < number < 120 else _wave(number, 8)
        for place, more in enumerate((turns, turns * (2 + _wave(3 * number, 6)), turns * 1800, turns * 410)):
            totals[place] += more
        await history.sample()
    return history, clock


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


async def test_it_shows_what_status_tells():
    """Channels with the bot's own address and state, the queue, dead letters and four charts."""
    history, clock = await day()
    page = render(report(), history.samples(), now=clock.now())
    for text in (
        "@bot:hs.test",
        "bot@mail.test",
        "3 ready, 1200 settled",
        "1 min 15 s",
        "1 d 1 h",
        "not sent",
        ">17<",
    ):
        assert text in page
    assert page.count("<svg") == 4
    assert page.count("<polyline") >= 6
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


async def test_nothing_can_be_put_into_it():
    """A version, account, state or channel that is markup stands there as text; no scripts, nothing is loaded."""
    evil = "<script>alert(1)</script><img src=//evil.example/x>\"'"
    channel = {**report()["channels"]["matrix"], "account": evil, "state": evil, "since": evil}
    page = render(
        report(version=evil, channels={evil: channel}, stuck=[{"what": evil, "name": evil, "channel": evil}]),
        (), now=EPOCH, stuck=evil,
    )  # fmt: skip
    tags = _Tags()
    tags.feed(page)
    names = {name for name, _ in tags.found}
    assert not names & {"script", "img", "link", "iframe", "form", "a", "object"}
    assert not [attrs for _, attrs in tags.found if {"src", "href", "style"} & attrs.keys() or any(key.startswith("on") for key in attrs)]  # fmt: skip


async def test_reasons_are_not_shown():
    """Why a message is stuck may name people: even if it were told, it would not stand there."""
    stuck = [
        {"what": "not sent", "inbox": 1, "name": "1", "channel": "email", "why": "c4n4ry@person.example"}
    ]
    channel = {**report()["channels"]["email"], "detail": "c4n4ry", "last_error": "c4n4ry"}
    assert "c4n4ry" not in render(report(stuck=stuck, channels={"email": channel}), (), now=EPOCH)


async def test_the_day_is_bounded_and_gaps_stay_gaps():
    """288 samples and no more; a span without turns has no latency, which breaks the line."""
    history, _ = await day(hours=30)
    samples = history.samples()
    assert len(samples) == 288
    assert samples[-1].at - samples[0].at < DAY
    assert [one for one in samples if one.latency_s is None]
    assert all(one.turns == 0 for one in samples if one.latency_s is None)


async def test_a_sample_that_is_missed_is_in_the_next_one():
    """While the store cannot be read nothing is taken, and nothing counted is lost."""
    clock, total, down = ManualClock(EPOCH), [0.0], [True]

    async def stats():
        if down:
            raise StoreUnavailable("the disk is full")
        return StoreStats({}, {}, None, None, 0)

    history = DayHistory(stats, clock, counters=lambda: Counters(total[0], 0, 0, 0))
    total[0] = 5
    with pytest.raises(StoreUnavailable):
        await history.sample()
    down.clear()
    await history.sample()
    assert [one.turns for one in history.samples()] == [5]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (10, 10), (11, 20), (4_321, 5_000), (float("nan"), 1)])  # fmt: skip
def test_the_axis_ends_at_a_round_number(value, top):
    """The smallest of 1, 2 and 5 times a power of ten that has room."""
    assert ceiling(value) == top


def test_what_is_too_old_is_not_drawn():
    """A value from before the span is left out instead of being drawn outside."""
    old, new = EPOCH - 2 * DAY, EPOCH
    assert "<polyline" not in chart("x", [ChartLine("a", [(old, 5.0)])], until=new, span=DAY)
    assert "<polyline" in chart("x", [ChartLine("a", [(new, 5.0)])], until=new, span=DAY)


@pytest.mark.parametrize("listen", ["0.0.0.0:8811", "192.168.1.2:8811"])
def test_it_is_for_this_machine_only(listen):
    """The setting refuses to show it to others, even where health may be shown."""
    with pytest.raises(ValidationError, match="this machine only"):
        HttpSettings(listen=listen, allow_remote=True, status_page=True)
    assert HttpSettings(listen=listen, allow_remote=True).status_page is False
    assert HttpSettings(listen="127.0.0.1:8811", status_page=True).status_page is True


async def test_how_it_is_served():
    """Strict headers, no other method, no other host's name, and 503 when there is nothing to tell."""
    told = [report()]

    async def status():
        if told[0] is None:
            raise StoreUnavailable("no")
        return told[0]

    history, clock = await day(1)
    page = StatusPage(status, history, clock)
    health = Health(list, status)
    async with (
        serve(health.app(host="127.0.0.1", more=page.routes()), host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession() as client,
    ):
        url = f"http://127.0.0.1:{port}/"
        async with client.get(url) as answer:
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "@bot:hs.test" in await answer.text()
        async with client.get(url, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403
            assert "@bot:hs.test" not in await answer.text()
        async with client.post(url) as answer:
            assert answer.status == 405
        told[0] = None
        async with client.get(url) as answer:
            assert answer.status == 503
            assert "is not available" in await answer.text()
    async with (
        serve(health.app(host="127.0.0.1"), host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert answer.status == 404  # off by default
