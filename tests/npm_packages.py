"""
Packages of npm for tests, each set in a folder of its own in squidbot's cache, installed at first use.

Node itself comes with them, so that a machine's older one does not matter.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from devservers.environment import cache_folder

_NODE = "node@22"
_INSTALL_LIMIT_S = 300


class NodeMissing(Exception):
    """There is no npm, or it cannot get the packages."""


def install_packages(name: str, *packages: str) -> Path:
    """Return the folder ``node_modules`` with these packages (``name@version``) and Node.

    Raises:
        NodeMissing: With a sentence for the reason of a skipped test.
    """
    versions = "-".join(each.strip("@").replace("/", "-").replace("@", "-") for each in packages)
    folder = cache_folder() / name / f"node22-{versions}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, packages)
            (folder / "complete").touch()
    return folder / "node_modules"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NodeMissing(f"npm is not installed, so {', '.join(packages)} cannot be had")
    command = [npm, "i", "--no-audit", "--no-fund", _NODE, *packages]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeMissing(f"npm did not install {', '.join(packages)}: {error}") from error
    if done.returncode or not node_program(folder / "node_modules").exists():
        raise NodeMissing(f"npm did not install {', '.join(packages)}: {done.stderr[-300:]}")


def node_program(modules: Path) -> Path:
    """Return the Node that was installed with the packages."""
    return next(iter(modules.glob("node/node_modules/node-*/bin/node")), modules / "node/bin/node")
