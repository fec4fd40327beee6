"""
What one run of the kill tests counts and remembers.

`TALLY` counts the SIGKILLs that hit. `chance` gives every test its own random numbers from the seed of the run. A
`Ledger` is a file that holds which tests have passed, so that a run that was broken off goes on where it was.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

SEED = int(os.environ.get("SQUIDBOT_KILL_SEED", "0"))
"""All random moments of a run follow from it."""

THOROUGH = "SQUIDBOT_KILLS" in os.environ
"""Set by ``make kill``: each sweep over moments is whole, and what kills again and again does it as often as it can."""

TALLY: Counter[str] = Counter()
"""SIGKILLs that hit, by what was killed."""


def chance(name: str) -> random.Random:
    """Random numbers that depend on the seed of the run and on ``name`` alone."""
    return random.Random(f"{name} {SEED}")


def die_at_call(owner: Any, name: str, count: int, *, before: bool) -> None:
    """Replace a method by one at whose call of that number the process dies, before or after it."""
    real, calls = getattr(owner, name), iter(range(1, 1000))

    def die(*, now: bool) -> None:
        if now:
            os.kill(os.getpid(), signal.SIGKILL)

    def call(*arguments: Any, **more: Any) -> Any:
        number = next(calls)
        die(now=before and number == count)
        found = real(*arguments, **more)
        die(now=number == count)
        return found

    async def call_async(*arguments: Any, **more: Any) -> Any:
        number = next(calls)
        die(now=before and number == count)
        found = await real(*arguments, **more)
        die(now=number == count)
        return found

    setattr(owner, name, call_async if inspect.iscoroutinefunction(real) else call)


@dataclass(frozen=True, slots=True)
class Run:
    """What makes two runs the same: the code, the seed, and how many random kills each test is asked for."""

    commit: str
    seed: int
    kills: int


@dataclass(slots=True)
class Ledger:
    """
    The tests of a run that have passed, each with its SIGKILLs.

    The file is JSON lines: first the `Run`, then a line for each test, appended when it has passed. Each line begins
    with its line break, so one that a crash cut off spoils no other; it is passed over, and its test runs again.
    """

    path: Path
    run: Run
    passed: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def begin(cls, path: Path, run: Run) -> Self:
        """Start a new file; what was there is gone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(run)))
        return cls(path, run)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The run that a file is about; None if there is no such file or its first line cannot be read."""
        try:
            lines = [line for line in map(_decoded, path.read_text().splitlines()) if line is not None]
            ledger = cls(path, Run(**lines[0]))
        except (OSError, IndexError, TypeError):
            return None
        for line in lines[1:]:
            ledger.passed[line["test"]] = line["hits"]
        return ledger

    def note(self, test: str, hits: Mapping[str, int]) -> None:
        """A test has passed."""
        self.passed[test] = dict(hits)
        with self.path.open("a") as file:
            file.write("\n" + json.dumps({"test": test, "hits": dict(hits)}))

    @property
    def hits(self) -> Counter[str]:
        """All SIGKILLs of the tests that have passed, by what was killed."""
        total: Counter[str] = Counter()
        for hits in self.passed.values():
            total.update(hits)
        return total


def _decoded(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
