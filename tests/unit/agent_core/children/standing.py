"""
Tries the sandbox as whoever runs this: ``python standing.py LIBRARIES HOME WHAT-IS-REFUSED BACKEND [COMMAND]...``.

What is refused beforehand stands for what a service manager or a container takes away. Where the sandbox holds,
the commands are run in it.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path

UNIT = {
    "x86_64": (
        141,
        126,
        160,
        92,
        93,
        94,
        105,
        106,
        113,
        114,
        117,
        119,
        116,
        161,
        203,
        204,
        272,
        308,
        165,
        437,
    ),
    "aarch64": (140, 91, 164, 54, 55, 147, 146, 144, 149, 159, 51, 122, 97, 268, 40, 437),
}
"""Of what our unit refuses, with EPERM: setpriority, capset, setrlimit, chown and the like, unshare, mount, openat2."""
NAMESPACES = {"x86_64": (272, 308, 56), "aarch64": (97, 268, 220)}
"""unshare, setns, and clone where it asks for a namespace of users: machines that have these switched off."""
LANDLOCK = {"x86_64": (444, 445, 446), "aarch64": (444, 445, 446)}
"""What a service manager of before 2024 refuses besides."""


def refuse(numbers, *, clone=0):
    lines = [(0x20, 0, 0, 0)]
    if clone:
        # Only where the flags ask for a namespace of users; a plain fork stays possible.
        lines += [(0x15, 0, 4, clone), (0x20, 0, 0, 16), (0x45, 0, 1, 0x10000000), (0x06, 0, 0, 0x00050001)]
        lines += [(0x06, 0, 0, 0x7FFF0000)]
    for number in numbers:
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
    lines.append((0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, struct.pack("@HP", len(lines), ctypes.addressof(buffer)), 0, 0) == 0


def main():
    libraries, home, what, backend = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    sys.path[:0] = [str(Path(__file__).resolve().parents[4]), libraries]
    import platform

    import anyio

    from agent_core.children import command_sandbox

    if what in ("unit", "old unit"):
        refuse(UNIT[platform.machine()])
    if what == "no namespaces":
        unshare, setns, clone = NAMESPACES[platform.machine()]
        refuse((unshare, setns), clone=clone)
    if what == "old unit":
        refuse(LANDLOCK[platform.machine()])
    if what == "no groups":
        command_sandbox._GROUPS = ("/no/such/folder",)
    (home / "workspace").mkdir(parents=True)

    async def go():
        sandbox = command_sandbox.CommandSandbox(
            command_sandbox.SandboxFolders(
                workspace=home / "workspace", home=home, private_in=home / "commands"
            ),
            backend=backend,
        )
        proof = await sandbox.prove()
        said = await sandbox.run("echo $((40 + 2)); id -u", seconds=20) if proof.held else None
        runs = [await sandbox.run(command, seconds=60) for command in sys.argv[5:] if proof.held]
        return {
            "held": proof.held,
            "told": str(proof),
            "said": said.head.decode() if said else "",
            "runs": [[run.limit or run.status, (run.head + run.tail).decode()] for run in runs],
        }

    print(json.dumps(anyio.run(go)))


if __name__ == "__main__":
    main()
