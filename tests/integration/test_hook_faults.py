"""A webhook while something is wrong: what it cannot keep it does not accept, says when to come again, and then once."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest
from aiohttp import ClientSession, web

from agent_core.messages import SessionKey
from gateway.operations.http import hook_routes
from gateway.operations.http.health import serve
from gateway.operations.http.hook_routes import Hooks
from gateway.proactive.jobs.job_service import JobPlace
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.settings.settings import HookSettings
from gateway.store.model import JobKind
from tests.clock import ManualClock
from tests.home_damage import fill
from tests.integration.schedule_world import START, said, scheduled
from tests.proactive_world import ANN

SECRET = "0123456789abcdef-secret"
HOOK = HookSettings.model_validate({"secret": SECRET, "text": "{title}"})


class Reported:
    """A house in which a job waits for a webhook, and the webhook; ``standby`` is why another process is the daemon."""

    def __init__(self, home, port):
        self.home, self.port, self.standby = home, port, ""

    async def post(self, title, *, key="", data=None, **headers):
        """The status, what is said, and when to come again."""
        given = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json", **headers}
        given |= {"Idempotency-Key": key} if key else {}
        content = json.dumps({"title": title}).encode() if data is None else data
        url = f"http://127.0.0.1:{self.port}/hooks/house"
        async with ClientSession() as http, http.post(url, data=content, headers=given) as answer:
            return answer.status, (await answer.json()).get("error", ""), answer.headers.get("Retry-After")

    async def told(self, count):
        await self.home.until(lambda: len(self.texts) == count)
        return self.texts

    @property
    def texts(self):
        return [each.partition("\n\n")[2] for each in said(self.home, ANN) if each.startswith("House:")]


@asynccontextmanager
async def reported(folder, clock=None):
    async with scheduled(folder, clock or ManualClock(START)) as home:
        await home.asked(ANN, "hello")
        place = JobPlace(SessionKey("matrix", f"dm-{ANN}"), "bot", ANN, persons=(ANN,))
        await home.built.proactive.jobs.add(
            place, TriggerRequest(hook="house"), text="House:", kind=JobKind.REMIND
        )
        made = Reported(home, 0)

        async def standby():
            return made.standby

        take, now = home.built.proactive.scheduler.take_report, home.built.clock.monotonic
        app = web.Application()
        app.add_routes(Hooks({"house": HOOK}, take, standby, now).routes())
        async with serve(app, host="127.0.0.1", port=0) as made.port:
            yield made


async def test_a_full_disk(small_disk):
    """Nothing is accepted that could not be kept; the same delivery is said once when there is room."""
    async with reported(small_disk) as hook:
        assert (await hook.post("before", key="1"))[0] == 202
        await hook.told(1)
        ballast = fill(small_disk)
        status, why, again = await hook.post("while full", key="2")
        assert (status, why, again) == (503, "it cannot be stored now", "60")
        ballast.unlink()
        for _ in range(2):
            assert (await hook.post("while full", key="2"))[0] == 202
        assert await hook.told(2) == ["before", "while full"]


async def test_another_process_is_the_daemon(tmp_path):
    """It says so, and takes nothing; afterwards the same delivery is said once."""
    async with reported(tmp_path) as hook:
        hook.standby = "another process works on this home"
        assert await hook.post("x", key="1") == (503, "another process works on this home", "60")
        hook.standby = ""
        assert [(await hook.post("x", key="1"))[0] for _ in range(2)] == [202, 202]
        assert await hook.told(1) == ["x"]


async def test_a_store_that_hangs(tmp_path, monkeypatch):
    """The program is told to come again after a while; what was stored after all is not stored twice."""
    monkeypatch.setattr(hook_routes, "_ACCEPT_LIMIT_S", 0.2)
    async with reported(tmp_path) as hook:
        jobs = hook.home.built.store.jobs
        real = jobs.jobs

        async def hang(*_, **__):
            await anyio.sleep_forever()

        jobs.jobs = hang
        assert (await hook.post("x", key="1"))[0] == 503
        jobs.jobs = real
        monkeypatch.setattr(hook_routes, "_ACCEPT_LIMIT_S", 60.0)
        assert (await hook.post("x", key="1"))[0] == 202
        assert await hook.told(1) == ["x"]


@pytest.mark.parametrize("days", [-20_000, 20_000])
async def test_a_wrong_clock(tmp_path, days):
    """Of 1971 or 2081: reports come in their order, and each once, also after it was set right."""
    clock = ManualClock(START)
    async with reported(tmp_path, clock) as hook:
        clock._now = START + timedelta(days=days)
        assert (await hook.post("one", key="1"))[0] == 202
        await hook.told(1)
        clock._now = START
        assert [(await hook.post(each, key=key))[0] for each, key in (("one", "1"), ("two", "2"))] == [
            202,
            202,
        ]
        assert await hook.told(2) == ["one", "two"]


@pytest.mark.parametrize(
    ("body", "packs", "status"), [("", True, 202), ("", False, 400), ("x" * 50, True, 413)]
)
async def test_a_packed_body(tmp_path, caplog, body, packs, status):
    """One that cannot be unpacked is the sender's mistake, and fills no log; one that grows without end is too long."""
    data = json.dumps({"title": body * 1_000_000 or "packed"}).encode()
    data = gzip.compress(data) if packs else data
    async with reported(tmp_path) as hook:
        got, _, _ = await hook.post("", data=data, **{"Content-Encoding": "gzip"})
        assert got == status
        assert (await hook.post("after"))[0] == 202
        assert (await hook.told(1 + (status == 202)))[-1] == "after"
    assert "Traceback" not in caplog.text


async def test_a_program_that_goes_away_in_its_body(tmp_path):
    """Half a body is no report."""
    async with reported(tmp_path) as hook:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", hook.port)
            head = f"POST /hooks/house HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 17\r\n\r\n"
            writer.write(f'{head}{{"title"'.encode())
            await writer.drain()
            writer.close()
        assert (await hook.post("whole"))[0] == 202
        assert await hook.told(1) == ["whole"]
