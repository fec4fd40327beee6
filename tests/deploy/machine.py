"""
A Debian machine whose process 1 is systemd, in namespaces of its own: what the unit file promises is seen there.

`boot.sh` draws the file systems and control groups; here the machine is filled, started, asked and stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.engine import Engine
from tests.deploy.images import ROOT, debian_base

_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("systemd", "memory", "pids", "devices", "unified")
_MASKED = (
    "systemd-udevd.service", "systemd-logind.service", "systemd-modules-load.service",
    "systemd-sysctl.service", "systemd-networkd.service", "systemd-timesyncd.service", "console-getty.service",
    "getty.target", "systemd-udev-trigger.service", "systemd-networkd-wait-online.service",
)  # fmt: skip
_INSIDE = {"PATH": "/opt/squidbot/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def machine_missing() -> str | None:
    """Why no machine can be booted here; None if one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in _CONTROLLERS if not (_CGROUPS / name).is_dir()]
    return f"no control groups {', '.join(missing)} in the hybrid layout" if missing else None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that runs. ``root`` is its file system as seen from outside."""

    root: Path
    init_pid: int

    def run(self, *command: str, limit_s: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.init_pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w",
             "env", "-i", *(f"{name}={value}" for name, value in _INSIDE.items()), *command],
            capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def until(self, unit: str, name: str, wanted: str, *, limit_s: float = 60) -> None:
        """Ask for a property until it is ``wanted``."""
        end = time.monotonic() + limit_s
        while (seen := self.show(unit, name)) != wanted:
            if time.monotonic() > end or (seen == "failed" and wanted == "active"):
                log = self.run("journalctl", "-u", unit, "-n", "40", "--no-pager", check=False).stdout
                raise AssertionError(f"{unit}: {name} is {seen!r}, not {wanted!r}\n{log}")
            time.sleep(0.2)

    def main_pid(self, unit: str) -> int:
        """The service's process, as numbered inside. Never 0: that would be the caller's own group."""
        pid = int(self.show(unit, "MainPID"))
        if pid <= 1:
            raise AssertionError(f"{unit} has no process")
        return pid


def bare(root: Path, *, release: str = "trixie") -> None:
    """Fill a machine: a release of Debian with systemd, and no squidbot."""
    root.mkdir()
    base = debian_base(("systemd-sysv", "dbus", "curl", "procps"), release=release)
    subprocess.run(["tar", "-C", str(root), "-xf", str(base)], check=True)
    for unit in _MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")


def unpack(engine: Engine, image: str, root: Path) -> None:
    """Fill a machine: Debian with systemd, and squidbot as the image has it."""
    bare(root)
    name = engine.out("create", image)
    exported = f"/usr/bin/docker export {name} | tar -C {root} -x opt/squidbot"
    subprocess.run(["sh", "-c", exported], env=engine.environment, check=True)
    engine.docker("rm", name)
    unit_file = ROOT / "deploy" / "systemd" / "squidbot.service"
    shutil.copy(unit_file, root / "etc/systemd/system/squidbot.service")


@contextmanager
def running_machine(
    root: Path, name: str = "squidbot-test", *, shared_network: bool = False
) -> Iterator[Machine]:
    """Boot a filled machine, with a network of its own or with this machine's, and take everything away again."""
    with (root.parent / "boot.log").open("wb") as log:
        outer = subprocess.Popen(
            [str(Path(__file__).with_name("boot.sh")), str(root), name],
            env={**os.environ, "NETWORK": "shared" if shared_network else "own"},
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        machine = Machine(root, _init_of(outer, root))
        _wait_until_booted(machine)
        yield machine
    finally:
        _power_off(outer)
        for controller in _CONTROLLERS:
            _remove_groups(_CGROUPS / controller / name)


def _init_of(outer: subprocess.Popen[bytes], root: Path) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        with suppress(OSError):  # the script's own programs come and go
            if children and Path(f"/proc/{children[0]}/exe").readlink().name == "systemd":
                return int(children[0])
        if outer.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError("the machine did not start: " + (root.parent / "boot.log").read_text()[-2000:])


def _wait_until_booted(machine: Machine) -> None:
    end = time.monotonic() + 60
    said = ""
    while time.monotonic() < end:
        said = machine.run("systemctl", "is-system-running", check=False).stdout.strip()
        if said in ("running", "degraded"):
            return
        time.sleep(0.3)
    raise AssertionError(f"the machine is {said!r}")


def _power_off(outer: subprocess.Popen[bytes]) -> None:
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    with suppress(OSError, IndexError):
        os.kill(int(children.read_text().split()[0]), signal.SIGRTMIN + 3)
    try:
        outer.wait(120)
    except subprocess.TimeoutExpired:
        outer.kill()  # and with it, by unshare's --kill-child, everything inside
        outer.wait()


def _remove_groups(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
