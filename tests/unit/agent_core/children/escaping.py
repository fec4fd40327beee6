"""
Proves a sandbox whose runner is elsewhere and attacks it, as whoever runs this, who stands for the daemon.

``python escaping.py OPTIONS-AS-JSON``: ``libraries``, ``home``, ``backend``, ``connects``.
It needs no test library, because it runs on machines without one. One line of JSON says what came of it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
MEMORY = "held = []\nwhile True: held.append(bytearray(1 << 20))"


FETCH = "import urllib.request as r; print(r.urlopen('http://data.example/', timeout=9).read().decode())"
"""By the proxy that the environment names; there is no such host."""


async def serve_a_page(listener: Any) -> None:
    """Stands for the proxy."""
    import asyncio

    loop = asyncio.get_running_loop()
    given, _ = await loop.sock_accept(listener)
    with given:
        asked = (await loop.sock_recv(given, 9000)).partition(b"\r\n")[0]
        await loop.sock_sendall(given, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + asked)


async def attacked(options: dict[str, Any]) -> dict[str, Any]:
    import anyio
    from targets import about, make_home, results_of, targets_in

    from agent_core.children.command_sandbox import CommandSandbox, SandboxFolders
    from agent_core.children.rights import Ceilings

    home = Path(options["home"])
    make_home(home)
    sandbox = CommandSandbox(
        SandboxFolders(
            workspace=home / "workspace",
            home=home,
            private_in=home / "run" / "commands",
            readable=[HERE, *map(Path, options.get("readable", []))],
        ),
        backend=options["backend"],
        limits=Ceilings(memory_bytes=200_000_000, processes=24, disk_bytes=100_000_000),
        connects=options.get("connects", False),
        unit=home / "run" / "shell.sock",
    )
    proof = await sandbox.prove()
    found: dict[str, Any] = {"held": proof.held, "told": str(proof), "user": os.getuid()}
    if not proof.held:
        return found
    work = home / "workspace" / "work"
    with tempfile.TemporaryDirectory() as folder, targets_in(Path(folder)) as targets:
        # A runner without capabilities ends the whole command for that one, see `test_limits`.
        left_out = ["be_hidden_from_the_runner"] if os.getuid() else []
        given = json.dumps(about(targets, home, Path(folder)) | {"left_out": left_out})
        outcome = await sandbox.run(
            shlex.join(["python3", "-I", "-S", str(HERE / "escapes.py"), given]), seconds=60
        )
    found["escapes"] = results_of((outcome.head + outcome.tail).decode())
    found["ended"] = repr(outcome)[:300]
    plain = await sandbox.run(
        "echo $((40 + 2)); id -u; echo kept > kept; mkdir -p a; cat /proc/1/comm", seconds=20
    )
    found["plain"] = (plain.head + plain.tail).decode()
    found["kept"] = [(work / "kept").read_text(), (work / "kept").stat().st_uid]
    found["outside"] = [(home / "victim").read_text(), oct(home.stat().st_mode & 0o777)]
    left = await sandbox.run(
        "(setsid sh -c 'setsid sleep 4711 & exit' &); sleep 0.3; echo started", seconds=20
    )
    found["left"] = [left.status, left.ended, left.limit]
    slow = await sandbox.run("sleep 60", seconds=1)
    bomb = await sandbox.run(shlex.join(["python3", "-I", "-S", "-c", BOMB]), seconds=3)
    memory = await sandbox.run(shlex.join(["python3", "-I", "-S", "-c", MEMORY]), seconds=30)
    found["limits"] = [
        slow.limit,
        bomb.limit,
        memory.limit or ("memory" if memory.signal or memory.status else ""),
    ]
    if sandbox.connects:
        page = await sandbox.run(shlex.join(["python3", "-I", "-c", FETCH]), seconds=20, serve=serve_a_page)
        found["page"] = (page.head + page.tail).decode()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(sandbox.run, "touch begun; sleep 3; touch not-ended", seconds=60))
        with anyio.move_on_after(50):
            while not (work / "begun").exists():
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    await anyio.sleep(4)
    found["cancelled"] = [(work / name).exists() for name in ("begun", "not-ended")]
    return found


def main() -> None:
    options = json.loads(sys.argv[1])
    sys.path[:0] = [str(HERE), str(HERE.parents[3]), *options.get("libraries", [])]
    import anyio

    print(json.dumps(anyio.run(attacked, options)))


if __name__ == "__main__":
    main()
