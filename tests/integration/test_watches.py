"""Watches: the base line, what is new, failures, and what a stranger's words may do. The server is real."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.messages import SessionKey
from agent_core.provenance import Trust, from_json, trust_of
from agent_core.tools.web.config import WebSettings
from agent_core.tools.web.plugin import web_client
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import AddressWatch, TriggerInvalid, parse_timing
from gateway.proactive.jobs.watcher import Watcher
from gateway.routing.access import Access, Alias
from gateway.routing.conversations import Conversations
from gateway.store.model import JobKind
from gateway.store.stores import StoreUnavailable
from tests.clock import ManualClock
from tests.integration.schedule_world import later, said, scheduled, settled
from tests.proactive_world import ANN
from tests.web_world import SAFE, http, server

START = datetime(2026, 5, 1, 8, tzinfo=UTC)
ITEM = "<item><guid>{0}</guid><title>entry {0}</title></item>"


def feed(*numbers: int, **headers: str) -> bytes:
    items = "".join(map(ITEM.format, numbers))
    return http(200, f"<rss><channel>{items}</channel></rss>".encode(), "text/xml", **headers)


@pytest.fixture(autouse=True)
def reachable(monkeypatch):
    """The server's address is a public one; another of this machine is not."""
    monkeypatch.setattr("agent_core.tools.web.plugin.reach_of", lambda _: SAFE)


async def watched(home, address: str, *, ask: bool = False, every: str = "1h", part: str = ""):
    place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), "bot", ANN, persons=(ANN,))
    request = TriggerRequest(at=f"every {every}", watch=address, part=part)
    kind = JobKind.ASK if ask else JobKind.REMIND
    return await home.built.proactive.jobs.add(place, request, text="News:", kind=kind)


async def looked(home, clock, job, **span) -> None:
    """Let time pass until the job has looked once more."""
    clock.advance(1)
    before = (await home.plans.job(job.id)).last_at
    await later(home, clock, **(span or {"hours": 1}))

    async def has_looked() -> bool:
        await home.built.proactive.scheduler.fire_due()
        return (await home.plans.job(job.id)).last_at != before

    await home.until(has_looked)


async def state_of(home, job):
    return await home.built.store.inbox.position("matrix", "bot", f"watch:{job.id}")


async def test_what_is_new_is_said_once_and_the_base_line_is_not(tmp_path):
    """The server is asked for changes only; the words that came from there are nobody's the person knows."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1, 2, ETag='"one"')
        job = await watched(home, site.url("/feed"))
        await looked(home, clock, job, seconds=5)
        site.answers["/feed"] = http(304)
        await looked(home, clock, job)
        assert 'If-None-Match: "one"' in site.asked[-1]
        site.answers["/feed"] = feed(2, 3)
        await looked(home, clock, job)
        await looked(home, clock, job)
        await home.until(lambda: len(said(home, ANN)) == 2)
        assert said(home, ANN)[1] == "News:\n\n- entry 3"
        assert len(site.asked) == 4 and len(home.model.asked) == 1
        rows = await home.built.store.inbox.rows(session=job.session)
        origins = [row.message.notes.job.origins for row in rows if row.message.kind == "job"]
        assert [trust_of(from_json(each)) for each in origins] == [Trust.UNTRUSTED]


@pytest.mark.parametrize("ask", [False, True])
async def test_news_that_waited_while_it_looked_again_is_said_each(tmp_path, monkeypatch, ask):
    """A later look has other news: it does not stand for the earlier one, as a later run of a question does."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1)
        job = await watched(home, site.url("/feed"), ask=ask)
        await looked(home, clock, job, seconds=5)
        with monkeypatch.context() as patch:
            patch.setattr(home.built.wakeups.session, "fire", lambda _: None)  # as while the channel is away
            site.answers["/feed"] = feed(1, 2)
            await looked(home, clock, job)
        site.answers["/feed"] = feed(1, 2, 3)
        await looked(home, clock, job)
        await home.until(lambda: settled(home))
        outcomes = [outcome for outcome, _ in await home.ledger(f"job:{job.id}")]
    assert outcomes == ["delivered", "delivered"]


async def test_a_question_about_what_is_new(tmp_path):
    """The model sees it fenced as data, and is asked only when something is new."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/"] = http(200, b"<p>Open until 8</p>")
        job = await watched(home, site.url("/"), ask=True)
        await looked(home, clock, job, seconds=5)
        site.answers["/"] = http(200, b"<p>Open until 9</p>")
        await looked(home, clock, job)
        await home.until(lambda: len(said(home, ANN)) == 2)
        asked = (await home.built.store.inbox.rows(session=job.session))[0].message.text
        assert "<forwarded>" in asked and "Open until 9" in asked and asked.endswith("News:")
        assert len(home.model.asked) == 2


async def test_failures_wait_longer_and_are_told_at_once_or_after_a_day(tmp_path):
    """At the first look at once; later only what lasts, once; the server's own wish counts, at most a day."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        job = await watched(home, site.url("/feed"))
        await looked(home, clock, job, seconds=5)
        await home.until(lambda: len(said(home, ANN)) == 2)
        assert said(home, ANN)[1].startswith("I cannot read ") and "404" in said(home, ANN)[1]
        assert "404" in (await home.plans.job(job.id)).note
        site.answers["/feed"] = feed(1)
        await looked(home, clock, job)
        assert (await home.plans.job(job.id)).note == ""
        site.answers["/feed"] = http(429, Retry_After="36000")
        await looked(home, clock, job)
        next_at = (await home.plans.job(job.id)).next_at
        assert 36000 <= (next_at - clock.now()).total_seconds() <= 36000 + 3600
        site.answers["/feed"] = http(500, Retry_After="999999")
        waits = []
        for _ in range(7):
            await looked(home, clock, job, days=1, hours=1)
            waits.append(((await home.plans.job(job.id)).next_at - clock.now()).total_seconds())
        assert max(waits) <= 25 * 3600
        await home.until(lambda: len(said(home, ANN)) == 3)
        assert "500" in said(home, ANN)[2]
        site.answers["/feed"] = feed(1, 2)
        await looked(home, clock, job, days=1, hours=1)
        await home.until(lambda: len(said(home, ANN)) == 4)
        assert said(home, ANN)[3].endswith("- entry 2")


async def test_a_page_that_cannot_be_read_is_no_news_for_the_model_either(tmp_path):
    """It is told as it is: the question is about what is new, and nothing is."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        await looked(home, clock, await watched(home, site.url("/"), ask=True), seconds=5)
        await home.until(lambda: len(said(home, ANN)) == 2)
        assert said(home, ANN)[1].startswith("I cannot read ") and len(home.model.asked) == 1


async def test_a_look_that_was_killed_between_its_commits_tells_nothing_twice(tmp_path, monkeypatch):
    """What was said stands with what was seen; the time of the next look may be lost."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1)
        job = await watched(home, site.url("/feed"))
        await looked(home, clock, job, seconds=5)
        site.answers["/feed"] = feed(1, 2)
        with monkeypatch.context() as patch:

            async def lost(*_args, **_more):
                raise StoreUnavailable("killed")

            patch.setattr(type(home.plans), "record_run", lost)
            await later(home, clock, hours=1)
            await home.until(lambda: len(said(home, ANN)) == 2)
        site.answers["/feed"] = feed(1, 2, 3)
        await looked(home, clock, job, seconds=5)
        await home.until(lambda: len(said(home, ANN)) == 3)
        assert [text.rpartition(" ")[2] for text in said(home, ANN)[1:]] == ["2", "3"]


async def test_a_look_that_fails_unforeseen_ends_no_other(tmp_path, monkeypatch):
    """Whatever reading one page raises: it is told, it waits as after other failures, and the next one is looked at."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1)
        with monkeypatch.context() as patch:
            patch.setattr("gateway.proactive.jobs.watched_content._feed_of", lambda _: 1 / 0)
            bad = await watched(home, site.url("/feed"))
            await looked(home, clock, bad, seconds=5)
        await home.until(lambda: "what is there cannot be read" in said(home, ANN)[-1])
        site.answers["/other"] = feed(1)
        job = await watched(home, site.url("/other"))
        await looked(home, clock, job, seconds=5)
        assert await state_of(home, job) is not None
        assert [each.partition(" HTTP")[0] for each in site.asked] == ["GET /feed", "GET /other"]


async def test_a_mark_that_cannot_be_sent_back_is_left_out(tmp_path):
    """An ETag with bytes that are no text failed each look from then on, for good."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1, ETag='"one"').replace(b'"one"', b'"on\xe9"')
        job = await watched(home, site.url("/feed"))
        await looked(home, clock, job, seconds=5)
        site.answers["/feed"] = feed(1, 2)
        await looked(home, clock, job)
        await home.until(lambda: said(home, ANN)[-1] == "News:\n\n- entry 2")
        assert "If-None-Match" not in site.asked[-1]


async def test_a_removed_watch_leaves_nothing(tmp_path):
    """Neither its job nor what it has seen; a look that was at work then says nothing."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        site.answers["/feed"] = feed(1)
        job = await watched(home, site.url("/feed"))
        await looked(home, clock, job, seconds=5)
        assert await state_of(home, job) is not None
        assert await home.built.proactive.jobs.remove(job)
        assert await state_of(home, job) is None
        site.answers["/feed"] = feed(2)
        access = Access([Alias("matrix", ANN)], {"matrix": (ANN,)})
        watcher = Watcher(
            home.built.store,
            Conversations(access),
            clock,
            lambda: web_client(WebSettings()),
            files=lambda: None,
            channels={},
        )
        await watcher.check(job, parse_timing(job.timing), clock.now())
        assert await state_of(home, job) is None
        assert len(said(home, ANN)) == 1


async def test_an_address_of_this_machine_is_not_reached(tmp_path):
    """Unless the owner has allowed it in the settings; a redirect does not lead there either."""
    clock = ManualClock(START)
    async with server() as site, server("127.0.0.2") as device, scheduled(tmp_path, clock) as home:
        await home.asked(ANN, "hello")
        device.answers["/"] = http(200, b"<p>secret</p>")
        site.answers["/"] = http(302, Location=device.url("/"))
        for address in (device.url("/"), site.url("/")):
            job = await watched(home, address)
            await looked(home, clock, job, seconds=5)
            assert "may not be reached" in (await home.plans.job(job.id)).note
        assert not device.connections


@pytest.mark.parametrize(
    ("address", "every"), [("ftp://x.example/", "1h"), ("https://x.example/", "day 09:00"), ("x", "1h")]
)
async def test_what_cannot_be_watched_is_refused(tmp_path, address, every):
    async with scheduled(tmp_path, ManualClock(START)) as home:
        with pytest.raises(TriggerInvalid):
            await watched(home, address, every=every)
        assert await home.plans.jobs() == []


async def test_in_the_chat(tmp_path):
    """`!watch` begins, lists and ends; only for the owner."""
    clock = ManualClock(START)
    async with server() as site, scheduled(tmp_path, clock) as home:
        site.answers["/feed"] = feed(1)
        url = site.url("/feed")
        answer = await home.asked(ANN, f"!watch {url} every 2h")
        [job] = await home.plans.jobs()
        assert f"`{job.id}` looks at {url} every 2 hours" in answer, answer
        assert isinstance(parse_timing(job.timing), AddressWatch)
        assert f"- `{job.id}` looks at {url}" in await home.asked(ANN, "!watch")
        await home.built.proactive.jobs.set_paused(job, paused=True)
        assert f"- `{job.id}` paused, looks at {url}" in await home.asked(ANN, "!watch")
        assert "Nothing was done" in await home.asked(ANN, "!watch ftp://x.example/")
        assert "must begin with https" in await home.asked(ANN, "!watch somewhere")
        assert "do not look" in await home.asked(ANN, f"!watch remove {job.id}")
        assert "I watch nothing" in await home.asked(ANN, "!watch")


async def test_the_same_page_is_watched_once(tmp_path):
    """However often it is to be looked at. The controls are a part of it, and another address."""
    async with server() as site, scheduled(tmp_path, ManualClock(START)) as home:
        url = site.url("/feed")
        await home.asked(ANN, f"!watch {url}")
        [job] = await home.plans.jobs()
        told = await home.asked(ANN, f"!watch {url} every 2h")
        assert f"I watch that already: {job.id}: looks at {url} every hour" in told, told
        assert await home.plans.jobs() == [job]
        await watched(home, url)
        await watched(home, url, part="bread")
        assert "looks at" in await home.asked(ANN, f"!watch {url}2")
        assert len(await home.plans.jobs()) == 4


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("every 10 minutes", "every 10 minutes"),
        ("every 2 hours", "every 2 hours"),
        ("Every day", "every day"),
        ("every 1 minute", "every minute"),
    ],
)
async def test_how_often_in_several_words(tmp_path, typed, read):
    """As people write it: only `every 10m` was understood, and the answer did not say why."""
    async with server() as site, scheduled(tmp_path, ManualClock(START)) as home:
        site.answers["/feed"] = feed(1)
        url = site.url("/feed")
        assert f"looks at {url} {read}" in await home.asked(ANN, f"!watch {url} {typed}")
        assert len(await home.plans.jobs()) == 1


async def test_a_time_that_is_none_says_why(tmp_path):
    """The reason, not the list of all forms; another word than `every` is no form."""
    async with scheduled(tmp_path, ManualClock(START)) as home:
        why = await home.asked(ANN, "!watch https://x.example/ every so often")
        assert "so often" in why and "write for example 'every 2 hours'" in why and "'in " not in why
        assert "!watch ADDRESS" not in why
        assert "Write `!watch ADDRESS`" in await home.asked(ANN, "!watch https://x.example/ at 9")
        assert await home.plans.jobs() == []
