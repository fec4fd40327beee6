"""
``make scale-bench``: what a daemon on PostgreSQL carries, with many conversations and a slow model.

    python -m tests.scale [--quick] [--seconds S] [--daemons D ...] [--sessions N ...] [--json FILE] [--anew]

For each number of conversations, and of daemons, two loads on real processes. At once: more people wait
than all daemons have turns in hand, so the model, or this machine, is the limit; this gives the throughput. Paced:
people come at random moments, at half of that rate; this gives how long an answer takes. Afterwards each saying must
have had one answer, in order, in its place. Each point is kept in FILE as soon as it is measured, and a run that was
broken off goes on behind it. Exit code 1 if anything was lost, doubled, out of order or stuck.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).resolve().parents[2]
_ACCOUNTS = 4
_SAID_BEFORE = 1


@dataclass(frozen=True, slots=True)
class Options:
    """What makes two runs comparable."""

    seconds: float
    turns: int
    model_s: float
    accounts: int = _ACCOUNTS
    said_before: int = _SAID_BEFORE


async def _point(world: Any, sessions: int, daemons: int, options: Options) -> dict[str, Any]:
    """Both loads, and rest before them."""
    from tests.bench.machine import share_of_a_core
    from tests.bench.table import share
    from tests.scale.world import Cost

    people = world.people
    places = world.places(sessions)
    async with world.daemons(daemons):
        await world.settled()
        got = share_of_a_core()
        before = await world.snapshot()
        await anyio.sleep(options.seconds)
        idle = Cost.between(before, await world.snapshot())

        said, begun = len(people.ledger.asked), await world.snapshot()
        rate = await people.at_once(places, waiting=2 * daemons * options.turns, seconds=options.seconds)
        await world.settled()
        at_once = Cost.between(begun, await world.snapshot())
        asked = list(people.ledger.asked.values())[said:]
        waited = [one.answered_at - one.said_at for one in asked if one.answers]

        begun = await world.snapshot()
        calm = await people.paced(places, rate=max(rate / 2, 0.5), seconds=options.seconds)
        left = await world.settled()
        paced = Cost.between(begun, await world.snapshot())
        took = [one.answered_at - one.said_at for one in calm if one.answers]
    count = len(asked)
    return {
        "sessions": sessions,
        "processes": daemons,
        "answers_s": round(rate, 1),
        "at_once": _latencies(waited, share),
        "paced_per_s": round(len(calm) / options.seconds, 1),
        "paced": _latencies(took, share),
        "messages": count + len(calm),
        "client_ms": round(at_once.clients_s / count * 1000, 2),
        "server_ms": round(at_once.server_s / count * 1000, 2),
        "people_ms": round(at_once.people_s / count * 1000, 2),
        "cores": round((at_once.clients_s + at_once.server_s + at_once.people_s) / at_once.took_s, 2),
        "server_cores": round(at_once.server_s / at_once.took_s, 3),
        "wal_kb": round(at_once.wal / count / 1000, 1),
        "wal_kb_paced": round(paced.wal / max(1, len(calm)) / 1000, 1),
        "statements": round(at_once.statements / count, 1) if world.counts_statements else None,
        "round_trips": round(at_once.round_trips / count, 1),
        "round_trips_paced": round(paced.round_trips / max(1, len(calm)), 1),
        "calls": {
            name: [round(counts[0] / count, 2), round(counts[2] / count, 2)]
            for name, counts in sorted(at_once.calls.items(), key=lambda each: -each[1][2])
            if counts[0]
        },
        "retried": at_once.retried + paced.retried,
        "deadlocks": at_once.deadlocks + paced.deadlocks + idle.deadlocks,
        "idle_server_percent": round(idle.server_s / idle.took_s * 100, 2),
        "idle_client_percent": round(idle.clients_s / idle.took_s * 100, 2),
        "idle_calls_s": {
            name: round(counts[0] / idle.took_s, 2) for name, counts in idle.calls.items() if counts[0]
        },
        "core_got": round(got, 2),
        "problems": _problems(world, left),
    }


def _latencies(seconds: list[float], share: Any) -> list[float]:
    return [round(share(seconds, part) * 1000) for part in (0.5, 0.99)] if seconds else []


def _problems(world: Any, left: tuple[int, int, int, int]) -> list[str]:
    """What people have missed or seen twice; taken out of the ledger, so the next point begins anew."""
    found = list(world.people.ledger.problems())
    if any(left):
        found.append(
            f"rows left open: {left[0]} in the inbox, {left[1]} in the outbox; ended badly: {left[2:]}"
        )
    return found


async def _measure(
    options: Options, sessions: list[int], fleets: list[int], kept: Path, done: dict[str, Any], say: Any
) -> None:
    from tests.scale.world import Scenario

    missing = [(many, fleet) for many in sessions for fleet in fleets if f"{many}/{fleet}" not in done]
    if not missing:
        return
    async with Scenario.opened(
        accounts=options.accounts, model_s=options.model_s, turns=options.turns
    ) as world:
        for many, fleet in missing:
            say(f"{many:,} conversations, daemons: {fleet}")
            if world.is_unseeded(many):
                async with world.daemons(1):
                    await world.seed(many, said=options.said_before)
            point = await _point(world, many, fleet, options)
            done[f"{many}/{fleet}"] = point
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"options": asdict(options), "points": done}, indent=1) + "\n")
            if point["problems"]:
                say("; ".join(point["problems"][:5]))
                sys.stderr.write(world.logs()[-4000:])
                return


def main() -> int:
    """Measure what is missing, and print all of it."""
    sys.path[:0] = [str(ROOT), str(ROOT / "deploy")]
    from devservers.errors import ToolsMissing
    from tests.bench.machine import machine
    from tests.scale.table import table
    from tests.scale.world import DaemonEnded

    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one minute: to try the benchmark itself")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--turns", type=int, default=8, help="gateway.max_concurrent_turns (default 8)")
    parser.add_argument("--model-ms", type=float, default=200.0)
    parser.add_argument("--daemons", type=int, nargs="+", metavar="D", default=[1])
    parser.add_argument("--sessions", type=int, nargs="+", metavar="N", default=[200, 2_000, 20_000])
    parser.add_argument("--json", type=Path, metavar="FILE", help="default .cache/scale-bench-daemons.json")
    parser.add_argument("--anew", action="store_true", help="measure again what the file has")
    arguments = parser.parse_args()
    fleets, sessions, model_s = arguments.daemons, arguments.sessions, arguments.model_ms / 1000
    options = Options(arguments.seconds, arguments.turns, model_s)
    kept = arguments.json or ROOT / ".cache" / "scale-bench-daemons.json"
    if arguments.quick:
        options, sessions, fleets = Options(3.0, arguments.turns, model_s), [200], fleets[:2]
        kept = kept.with_name("scale-bench-quick.json")
    done: dict[str, Any] = {}
    if kept.exists() and not (arguments.anew or arguments.quick):
        found = json.loads(kept.read_text())
        done = found["points"] if found["options"] == asdict(options) else {}

    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"· {time.monotonic() - begun:4.0f} s  {text}", file=sys.stderr, flush=True)

    try:
        anyio.run(_measure, options, sessions, fleets, kept, done, say)
    except ToolsMissing as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return 75
    except DaemonEnded as ended:
        print(
            f"{ended}\nA daemon has ended. If its log says that its lease was over, this machine is too busy;"
            " give the command again, it goes on behind what is measured.",
            file=sys.stderr,
        )
        return 75
    points = [done[key] for many in sessions for fleet in fleets if (key := f"{many}/{fleet}") in done]
    circumstances = (
        f"{machine()}; model {options.model_s * 1000:g} ms, {options.turns} turns at once in a process,"
        f" {options.accounts} accounts, {options.said_before} message said before in each conversation"
    )
    print(f"{circumstances}; {time.monotonic() - begun:.0f} s\n\n{table(points)}")
    problems = [problem for point in points for problem in point["problems"]]
    print(
        "\nnothing lost, nothing doubled, all in order" if not problems else "\n" + "\n".join(problems[:20])
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
