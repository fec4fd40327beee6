"""
``make kill``: every kill test, with many random moments; a run that was broken off goes on where it was.

    python -m tests.kill [--kills N] [--seed N] [--new] [--workers N] [PYTEST_ARGUMENT ...]

The seed is printed first; with it the same moments are tried again. A run belongs to one state of the code: after
a change it begins anew. Exit code 1 if a test failed, or the SIGKILLs were fewer than ``--at-least``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.readme import KILL
from tests.kill.tally import Ledger, Run

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / ".cache" / "kill-run.jsonl"


def main() -> int:
    """Run what is not done yet, and say what has been hit in all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kill", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--kills", type=int, default=200, help="random kills that each test is asked for")
    parser.add_argument("--seed", type=int, help="of the random moments; a new one by default")
    parser.add_argument("--new", action="store_true", help="do not go on with a run that was broken off")
    parser.add_argument("--workers", type=int, default=1, help="test files at a time")
    parser.add_argument("--at-least", type=int, default=1000, help="SIGKILLs that must have hit in all")
    parser.add_argument(
        "--readme", action="store_true", help="keep the figures of a whole run for docs/benchmarks.md"
    )
    parser.add_argument("rest", nargs="*", help="for pytest, in the place of tests/kill")
    arguments = parser.parse_args()

    commit = _commit()
    ledger = None if arguments.new else Ledger.read(LEDGER)
    if ledger is None or (ledger.run.commit, ledger.run.kills) != (commit, arguments.kills):
        ledger = None
    if ledger is not None and arguments.seed not in (None, ledger.run.seed):
        ledger = None
    if ledger is None:
        seed = secrets.randbelow(100_000) if arguments.seed is None else arguments.seed
        ledger = Ledger.begin(LEDGER, Run(commit, seed, arguments.kills))
    run = ledger.run
    print(f"seed {run.seed}, {len(ledger.passed)} tests of this run have passed before")
    print(f"Each test kills up to {run.kills} times, so each may take minutes.", flush=True)

    workers = (
        ["-n", str(arguments.workers), "--dist", "loadfile"] if arguments.workers > 1 else ["-p", "no:xdist"]
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "kill",
        *(arguments.rest or ["tests/kill"]),
        "--timeout",
        "3600",
        *workers,
    ]
    environment = os.environ | {
        "SQUIDBOT_KILLS": str(run.kills),
        "SQUIDBOT_KILL_SEED": str(run.seed),
        "SQUIDBOT_KILL_LEDGER": str(LEDGER),
    }
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C ends pytest; what was done until then is told here
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode

    ledger = Ledger.read(LEDGER) or ledger
    hits = ledger.hits
    total = sum(hits.values())
    print(f"\nSIGKILLs that hit in the {len(ledger.passed)} tests that passed: {total} (seed {run.seed})")
    for what, count in hits.most_common():
        print(f"  {count:6,} {what}")
    complete = code in (0, 5)  # 5: nothing was left to be run
    if arguments.readme and complete and not arguments.rest:
        figures = {
            "machine": f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores",
            "seed": run.seed,
            "tests": len(ledger.passed),
            "hits": dict(hits.most_common()),
        }
        KILL.write_text(json.dumps(figures, indent=1) + "\n")
    if not complete:
        print("not everything passed; the same command runs what is left")
        return 1
    if total < arguments.at_least:
        print(f"fewer than {arguments.at_least}")
        return 1
    print("nothing lost, nothing doubled, nothing out of order")
    return 0


def _commit() -> str:
    """The state of the code: the commit, and a hash of what was changed since."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=False).stdout

    changed = git("diff", "HEAD")
    head = git("rev-parse", "HEAD").decode().strip() or "no commit"
    return f"{head}+{hashlib.sha256(changed).hexdigest()[:12]}" if changed else head


if __name__ == "__main__":
    sys.exit(main())
