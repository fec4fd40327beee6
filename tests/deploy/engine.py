"""
A container engine of our own for the time of the tests: dockerd on its own socket and its own folders.

Nothing of an engine that runs already is touched. What dockerd leaves behind in the kernel when it ends (a
bridge, firewall chains, forwarding) is taken away again if it was not there before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BASE_IMAGE = "python:3.13-slim-trixie"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_START_LIMIT_S = 40
_DOCKER = "/usr/bin/docker"  # the distribution's; a client from elsewhere may lack the builder


def engine_missing() -> str | None:
    """Why no engine can be had on this machine; None if one can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in (_DOCKER, "dockerd", "mmdebstrap"):
        if shutil.which(program) is None:
            return f"{program} is not installed (make service-test installs it on Debian)"
    probe = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else "this machine gives no namespaces"


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine; ``folder`` is for its files and may be used for others."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the client needs to find this engine and no other."""
        return {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_BUILDKIT": "1",
            "DOCKER_CONFIG": str(self.folder / "client"),
        }

    def docker(
        self, *arguments: str, limit_s: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the client. With ``check`` a failure fails the test with what the client said."""
        done = subprocess.run(
            [_DOCKER, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done

    def out(self, *arguments: str, limit_s: float = 120) -> str:
        """What the client prints."""
        return self.docker(*arguments, limit_s=limit_s).stdout.strip()

    def until(self, wanted: str, *arguments: str, limit_s: float = 60) -> None:
        """Ask the client until it prints ``wanted``."""
        end = time.monotonic() + limit_s
        seen = ""
        while time.monotonic() < end:
            seen = self.docker(*arguments, check=False).stdout.strip()
            if seen == wanted:
                return
            time.sleep(0.25)
        raise AssertionError(f"docker {' '.join(arguments)} says {seen!r}, not {wanted!r}")


@contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """Start dockerd and stop it again, with everything that ran in it."""
    before = _FORWARD.read_text()
    links_before = _links()
    policy_before = _forward_policy()
    (folder / "client").mkdir(parents=True)
    with (folder / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                "dockerd",
                f"--data-root={folder}/data",
                f"--exec-root={folder}/exec",
                f"--host=unix://{folder}/docker.sock",
                f"--pidfile={folder}/dockerd.pid",
            ],
            stdout=log,
            stderr=log,
        )
    engine = Engine(folder)
    try:
        _wait_until_up(engine, daemon, folder)
        yield engine
        for name in engine.out("ps", "-aq").split():
            engine.docker("rm", "-f", name, check=False)
    finally:
        daemon.terminate()
        try:
            daemon.wait(120)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        _forget_network(_links() - links_before, policy_before)
        _FORWARD.write_text(before)


def _wait_until_up(engine: Engine, daemon: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while engine.docker("version", check=False).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > end:
            raise AssertionError((folder / "dockerd.log").read_text()[-3000:])
        time.sleep(0.2)


def _links() -> set[str]:
    """The bridges that engines have made."""
    return {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("docker", "br-"))}


def _forward_policy() -> str:
    """What the firewall does with packets that are passed on, where no rule decides."""
    told = subprocess.run(["iptables", "-S", "FORWARD"], capture_output=True, text=True, check=False).stdout
    return "DROP" if told.startswith("-P FORWARD DROP") else "ACCEPT"


def _forget_network(links: set[str], policy: str) -> None:
    """Take away what a dockerd that has ended left in the kernel: its bridges, and the rules that name them."""
    for link in links:
        _quiet("ip", "link", "delete", link)
    _quiet("iptables", "-P", "FORWARD", policy)
    if "docker0" not in links:
        return
    for table in ("nat", "filter"):
        rules = subprocess.run(["iptables-save", "-t", table], capture_output=True, text=True, check=False)
        for line in rules.stdout.splitlines():
            if line.startswith("-A") and ("DOCKER" in line or links & set(line.split())):
                _quiet("iptables", "-t", table, "-D", *line[3:].split())
        for line in rules.stdout.splitlines():
            if line.startswith(":DOCKER"):
                _quiet("iptables", "-t", table, "-F", line[1:].split()[0])
        for line in rules.stdout.splitlines():
            if line.startswith(":DOCKER"):
                _quiet("iptables", "-t", table, "-X", line[1:].split()[0])


def _quiet(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)


def layers_bytes(engine: Engine, image: str, base: str) -> int:
    """How much an image adds to its base."""
    sizes: Sequence[str] = [engine.out("image", "inspect", "-f", "{{.Size}}", name) for name in (image, base)]
    return int(sizes[0]) - int(sizes[1])
