"""
``make fuzz``: throw bad input at the parsers of mail for a while.

    python -m tests.fuzz [--seconds 60] [--only NAME ...] [--seed N]

With atheris installed (``pip install atheris``) coverage guides it; otherwise chance does. What is found is
written to ``tests/data/fuzz`` and then is a test.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import SEEDS, TARGETS

KEPT = Path(__file__).parents[1] / "data" / "fuzz"
SLOW_S = 2.0


def main() -> int:
    """Fuzz what was asked for; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--only", action="append", choices=sorted(TARGETS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--guided", metavar="NAME", choices=sorted(TARGETS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.guided:
        return _guided(arguments.guided, arguments.seconds)
    KEPT.mkdir(parents=True, exist_ok=True)
    guided = importlib.util.find_spec("atheris") is not None
    print(f"{'atheris' if guided else 'chance'} for {arguments.seconds:.0f} s each, seed {arguments.seed}")
    bad = 0
    for name in arguments.only or TARGETS:
        if guided:
            command = [
                sys.executable,
                "-m",
                "tests.fuzz",
                "--guided",
                name,
                "--seconds",
                str(arguments.seconds),
            ]
            bad += subprocess.run(command, check=False).returncode != 0
        else:
            bad += _by_chance(name, arguments.seconds, arguments.seed * 1_000_000)
    return 1 if bad else 0


def _by_chance(name: str, seconds: float, number: int) -> bool:
    begun, count, slowest = time.monotonic(), 0, 0.0
    while time.monotonic() - begun < seconds:
        data = mutated(SEEDS[name], number + count)
        count += 1
        before = time.perf_counter()
        try:
            TARGETS[name](data)
            slowest = max(slowest, time.perf_counter() - before)
            if time.perf_counter() - before > SLOW_S:
                raise AssertionError("too slow")
        except Exception:
            path = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: found after {count} inputs, kept as {path}")
            return True
    print(f"{name}: {count} inputs, the slowest {slowest * 1000:.0f} ms, nothing found")
    return False


def _guided(name: str, seconds: float) -> int:
    import atheris

    atheris.instrument_all()
    corpus = KEPT.parent.parent.parent / ".cache" / "fuzz" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds:.0f}",
        "-max_len=20000",
        "-timeout=5",
        f"-artifact_prefix={KEPT}/{name}-",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
