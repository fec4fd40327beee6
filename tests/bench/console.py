"""
How fast the pages of the console are, over a home of 200,000 messages.

``python -m tests.bench.console [MESSAGES]`` prints of each page the median, the 95th percentile and the median
of the processor's time in milliseconds, by real HTTP on a real gateway: half of the messages in one conversation, the rest in 400.
Then what a page costs that stays open while nothing happens.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import anyio
import structlog

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Purpose, Usage
from gateway.store.stores import Pending
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from tests.bench.memory import _message
from tests.integration.gateway_world import Scenario
from tests.integration.test_approvals import ANN, deciding
from tests.integration.test_console import WITH_LOG, Browser, looking

_ROUNDS = 40
_SESSIONS = 400
_BATCH = 500
_OPEN_S = 60


def _key(number: int) -> SessionKey:
    return SessionKey("matrix", f"dm-@p{number}:hs.test" if number else f"dm-{ANN}")


async def _fill(one: Scenario, messages: int) -> None:
    """Histories, and rows of the queue for a tenth of them, as many as are kept for a while."""
    now, said = SystemClock().now(), [_message(number) for number in range(1000)]
    for number in range(_SESSIONS + 1):
        count = messages // 2 if number == 0 else messages // 2 // _SESSIONS
        for start in range(0, count, _BATCH):
            lines = [
                said[(start + each) % 1000].model_copy(
                    update={
                        "id": f"{start + each}",
                        "timestamp": now - timedelta(seconds=count - start - each),
                    }
                )
                for each in range(min(_BATCH, count - start))
            ]
            await one.built.memory.append_message(str(_key(number)), *lines)
    for start in range(0, messages // 10, _BATCH):
        batch = [_pending(start + each, number=(start + each) % (_SESSIONS + 1)) for each in range(_BATCH)]
        await one.built.store.inbox.accept("matrix", "bot", batch, {})
    usage = Usage(prompt_tokens=1000, completion_tokens=100, calls=1, cost_usd=0.01, model="m")
    for number in range(_SESSIONS):
        await one.built.store.usage.add(_key(number), usage, Purpose.CHAT)
    search = one.built.post_turn.search
    await search.update_all()
    while search.state() != {"complete": True, "behind": 0}:  # the gateway itself may have begun to
        await anyio.sleep(0.5)
        await search.update_all()


def _pending(native: int, *, number: int) -> Pending:
    message = InboundMessage(
        channel="matrix",
        account="bot",
        native_id=f"m{native}",
        session=_key(number),
        sender=Sender(address=_key(number).conversation.removeprefix("dm-"), verified=True),
        text="words of a message",
        received_at=SystemClock().now(),
    )
    if native % 200 == 0:
        return Pending(message, quarantine="uninvited")
    return Pending(message, ignore="sender_not_verified" if native % 20 else "over_limit")


async def _measure(browser: Browser, path: str) -> tuple[float, float, float]:
    times, busy = [], []
    for _ in range(_ROUNDS):
        start, used = time.perf_counter(), time.process_time()
        await browser.page(path)
        times.append(1000 * (time.perf_counter() - start))
        busy.append(1000 * (time.process_time() - used))
    return statistics.median(times), sorted(times)[int(0.95 * _ROUNDS)], statistics.median(busy)


async def _cost_of_open_page(browser: Browser) -> float:
    """The processor's time that a page takes for its news while there are none, in percent of a core."""
    found = []
    for path in ("people", "changes"):  # the first one is read and closed
        async with browser.client.get(f"{browser.url}/console/{path}"):
            used = time.process_time()
            await anyio.sleep(_OPEN_S)
            found.append(100 * (time.process_time() - used) / _OPEN_S)
    return found[1] - found[0]


async def _run(messages: int) -> None:
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        root = Path(folder)
        async with deciding(root, "none") as one, looking(one, settings=WITH_LOG, home=Home(root)) as browser:
            await _fill(one, messages)
            (root / "squidbot.log").write_text(
                '{"level": "info", "event": "x", "of": "something"}\n' * 200_000
            )
            session = quote(str(_key(0)), safe="")
            paths = [
                *(
                    "now",
                    "waiting",
                    "conversations",
                    "conversations?start=300",
                    f"conversation?session={session}",
                ),
                *(
                    f"conversation?session={session}&start={messages // 4}",
                    "search?q=word3+word40+word900",
                    "memory",
                ),
                *("people", "schedule", "effects", "cost", "cost?by=session", "cost?by=person"),
                *(
                    "messages",
                    "messages?state=all",
                    "message?id=1",
                    "settings",
                    "log",
                    "log?level=error",
                    "check",
                ),
            ]
            for path in paths:
                middle, high, busy = await _measure(browser, path)
                print(f"{middle:8.1f} {high:8.1f} {busy:8.1f}  {path.replace(session, 'S')}")
            print(f"{await _cost_of_open_page(browser):.3f} % of a core for a page that stays open")


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    anyio.run(_run, int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
