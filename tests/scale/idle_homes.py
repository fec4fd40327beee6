"""
The cost of idle homes: each as a process of its own, or all in one process.

    python -m tests.scale.idle_homes [HOMES ...]

For each number of homes one process builds and runs them, with a loopback account and the embedded queue each, and
prints its memory (PSS) and its processor time over ten seconds at rest. Compare the line of one home with the others.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

ROOT = Path(__file__).resolve().parents[2]
_REST_S = 10.0


def _pss_mib() -> float:
    found = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _measure(homes: int, folder: Path) -> None:
    from contextlib import AsyncExitStack

    from tests.integration.gateway_world import world

    async with AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(world(folder / str(number))) for number in range(homes)]
        for one in worlds:
            await one.asked("hello")
        before = _processor_s()
        await anyio.sleep(_REST_S)
        percent = (_processor_s() - before) / _REST_S * 100
        threads = len(list(Path("/proc/self/task").iterdir()))
        line = f"{homes:5} homes {_pss_mib():8.1f} MiB {threads:5} threads {percent:6.2f} % of a core"
        print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure each number of homes in a process of its own."""
    if sys.argv[1:2] == ["--child"]:
        from gateway.system.process_tuning import use_one_arena

        use_one_arena()  # as `squidbot run` does
        with tempfile.TemporaryDirectory() as folder:
            anyio.run(_measure, int(sys.argv[2]), Path(folder))
        return
    for homes in sys.argv[1:] or ["1", "10", "100"]:
        command = [sys.executable, "-m", "tests.scale.idle_homes", "--child", homes]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "deploy")]
    main()
