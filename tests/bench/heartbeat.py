"""
What a heartbeat costs: a week with nothing to do, and one check-in with and without something to say.

The whole gateway runs, on loopback servers; the week passes as quickly as its 336 ticks can be lived. Tokens are
those of the run ledger, by our own estimate of what the demo's prompts hold, with the definitions of the tools.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import structlog

from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal
from tests.proactive_world import ANN, Weeks, house

_SELDOM = {"interval_minutes": 600.0, "dedupe_hours": 0.0}


async def _idle_week(folder: Path) -> tuple[int, int, float]:
    """Model calls, tokens and seconds of work of a week in which nothing is to be done."""
    week = Weeks(7)
    async with house(
        folder,
        checklist="# Heartbeat\n- [x] water the plants\n",
        heartbeat={"interval_minutes": 30.0},
        clock=week.clock,
        sleep=week.sleep,
    ) as home:
        await home.asked(ANN, "hello")
        asked = len(home.model.asked)
        began = time.process_time()
        await week.pass_by()
        took_s = time.process_time() - began
        [entry] = await home.plans.ledger(name="heartbeat")
        assert entry.ticks == 336
        usage = await home.built.store.usage.rows(days=30)
    tokens = sum(
        row.usage.prompt_tokens + row.usage.completion_tokens for row in usage if row.purpose != "chat"
    )
    return len(home.model.asked) - asked, tokens, took_s


async def _ticks(folder: Path) -> dict[str, int]:
    """Tokens of a check-in by its end."""
    spent: dict[str, int] = {}
    says = ["HEARTBEAT_OK", "The milk is out; I would buy some on the way home."]
    async with house(folder, *says, heartbeat=_SELDOM) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: home.built.supervisor.all_up)
        for _ in says:
            instant, _found = await home.built.proactive.heartbeat.now()

            async def noted(at: object = instant) -> bool:
                entries = await home.plans.ledger(name="heartbeat")
                return bool(entries) and entries[0].instant == at

            await home.until(noted)
            [entry, *_] = await home.plans.ledger(name="heartbeat")
            spent[entry.outcome.value] = entry.tokens
        home.checklist.unlink()
        _, found = await home.built.proactive.heartbeat.now()
        assert not found.text
    return spent


def measure(rig: Rig) -> list[Figure]:
    """All of it; it takes some seconds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with TemporaryDirectory(prefix="squidbot-bench-") as folder:
        calls, tokens, took_s = anyio.run(_idle_week, Path(folder) / "week")
        spent = anyio.run(_ticks, Path(folder) / "ticks")
    return [
        Figure("model calls in a week of heartbeat runs with nothing to do", calls, "", Goal("=", 0)),
        Figure("tokens in that week", tokens, "", Goal("=", 0)),
        Figure("processor time of that week's 336 check-ins", took_s, "s", Goal("<", 30)),
        Figure(
            "tokens of a heartbeat run without work", 0 if tokens == 0 else tokens / 336, "", Goal("=", 0)
        ),
        Figure("tokens of a heartbeat run that has nothing to say", spent["silent"], "", Goal("<", 3000)),
        Figure("tokens of a heartbeat run with an alert", spent["delivered"], "", Goal("<", 3000)),
    ]
