"""
``make bench``: how quick and how small squidbot is, beside its goals and beside what it cannot do without.

    python -m tests.bench [--quick] [--only NAME ...] [--json FILE] [--readme | --readme-again]

The floors are measured in the same run on the same machine, so their ratios can be compared where the figures
cannot. Exit code 1 if a goal was missed. ``--readme`` keeps the figures and writes them into docs/benchmarks.md, together
with those that ``make kill`` and ``make soak`` have kept; ``--readme-again`` does so without measuring.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "ready",
    "commands",
    "size",
    "overhead",
    "throughput",
    "postgres",
    "request",
    "models",
    "matrix",
    "mail",
    "mailbox",
    "memory",
    "recall",
    "heartbeat",
    "shell",
    "attacked",
    "files",
    "mcp",
    "speech",
    "voice",
    "reach",
)


def main() -> int:
    """Measure what was asked for and print the table."""
    sys.path[:0] = [str(ROOT), str(ROOT / "deploy")]
    from tests.bench import readme
    from tests.bench.machine import machine, share_of_a_core
    from tests.bench.rig import Rig
    from tests.bench.table import Figure, as_json, as_table

    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions: to try the benchmark itself")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument(
        "--readme", action="store_true", help="keep the figures, write them into docs/benchmarks.md"
    )
    parser.add_argument("--readme-again", action="store_true", help="write those of the last --readme")
    arguments = parser.parse_args()
    if arguments.readme and (arguments.quick or arguments.only):
        parser.error("--readme takes a whole run")
    if arguments.readme_again:
        _into_readme()
        return 0

    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"· {time.monotonic() - begun:4.0f} s  {text}", file=sys.stderr, flush=True)

    groups: list[tuple[str, list[Figure]]] = []
    got: list[float] = []
    with Rig(quick=arguments.quick, say=say) as rig:
        for name in arguments.only or NAMES:
            say(name)
            got.append(share_of_a_core())
            groups.append((name, importlib.import_module(f"tests.bench.{name}").measure(rig)))
    where = (
        f"{machine()}; {time.monotonic() - begun:.0f} s, "
        f"a control loop got {min(got):.0%} to {max(got):.0%} of a core"
    )
    print(f"{where}\n\n{as_table(groups)}")
    kept = json.dumps({"machine": where, "figures": as_json(groups)}, indent=1) + "\n"
    if arguments.json:
        arguments.json.write_text(kept)
    if arguments.readme:
        readme.BENCH.write_text(kept)
        _into_readme()
    missed = [figure.what for _, figures in groups for figure in figures if figure.missed]
    print("\nall goals reached" if not missed else f"\nmissed: {'; '.join(missed)}")
    return 1 if missed else 0


def _into_readme() -> None:
    from tests.bench.readme import BENCH, KILL, PAGE, SOAK, put_into, read, section

    PAGE.write_text(put_into(PAGE.read_text(), section(read(BENCH), read(KILL), read(SOAK))))


if __name__ == "__main__":
    sys.exit(main())
