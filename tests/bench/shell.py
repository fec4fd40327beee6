"""
What a sandbox costs: ``true`` in each sandbox of the shell, beside a bare fork and exec of ``true`` from the loop.

Both alternate, so that a machine that is busy with something else is busy for both.
"""

from __future__ import annotations

import os
import subprocess
import time

import anyio

from agent_core.children.command_sandbox import Backend, CommandSandbox, SandboxFolders
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median


def measure(rig: Rig) -> list[Figure]:
    """Prove a sandbox and start the shortest of all commands in it, again and again."""
    return anyio.run(_measured, rig)


async def _measured(rig: Rig) -> list[Figure]:
    return [*await _of(rig, "landlock"), *await _of(rig, "bubblewrap")]


async def _of(rig: Rig, backend: Backend) -> list[Figure]:
    home = rig.folder / f"shell-{backend}"
    (home / "workspace").mkdir(parents=True)
    sandbox = CommandSandbox(
        SandboxFolders(workspace=home / "workspace", home=home, private_in=home / "commands"), backend=backend
    )
    what = f"a sandboxed true ({backend}), over a bare fork and exec, p50"
    begun = time.perf_counter()
    proof = await sandbox.prove()
    proved_ms = (time.perf_counter() - begun) * 1000
    if not proof.held:
        return [Figure(what, None, "ms", Goal("<", 25), note=str(proof))]
    sandboxed, bare = [], []
    for _ in range(10 if rig.quick else 60):
        begun = time.perf_counter()
        outcome = await sandbox.run("true", seconds=10)
        sandboxed.append((time.perf_counter() - begun) * 1000)
        assert outcome.status == 0, outcome
        begun = time.perf_counter()
        process = await anyio.open_process(["/bin/true"], stdin=subprocess.DEVNULL)
        await process.wait()
        bare.append((time.perf_counter() - begun) * 1000)
        await process.aclose()
    floor = median(bare)
    who = "as root, with a control group for its processes" if os.getuid() == 0 else ""
    return [
        Figure(
            what,
            median(sandboxed) - floor,
            "ms",
            Goal("<", 25),
            floor,
            "the bare one",
            note=f"{proof.told}; the fastest {min(sandboxed):.0f} {who}".strip(),
        ),
        Figure(f"trial of {backend} at start", proved_ms, "ms", note="beside everything else"),
    ]
