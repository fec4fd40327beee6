"""T7: whoever squidbot runs as, and whatever was taken away from it: a sandbox that holds, or none and the reason."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from agent_core.children import order
from agent_core.children.command_sandbox import CommandSandbox, SandboxFolders
from agent_core.children.order import ProgramOutcome, landlock_version

from .conftest import sandbox_in

SCRIPT = Path(__file__).with_name("standing.py")
SYSTEM_PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
NOBODY = 65534
pytestmark = [
    pytest.mark.skipif(
        landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, or the machine is not known",
    ),
]
OTHER = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
BARE = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]


def tried(prefix=(), what="nothing", backend="landlock", commands=()):
    """Try the sandbox in a process of that standing."""
    if prefix and os.getuid():
        pytest.skip("only root can become somebody else")
    if prefix and not (shutil.which("setpriv") and SYSTEM_PYTHON.exists()):
        pytest.skip(f"needs setpriv and {SYSTEM_PYTHON}, an interpreter that everybody may run")
    folder = Path(tempfile.mkdtemp(prefix="squidbot-test-"))
    try:
        if prefix:
            os.chown(folder, NOBODY if f"--reuid={NOBODY}" in prefix else 0, -1)
        python = str(SYSTEM_PYTHON) if prefix else sys.executable
        done = subprocess.run(
            [
                *prefix,
                python,
                "-W",
                "ignore",
                str(SCRIPT),
                sysconfig.get_path("purelib"),
                str(folder / "home"),
                what,
                backend,
                *commands,
            ],
            capture_output=True,
            text=True,
            timeout=100,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_as_whoever_runs_the_tests():
    found = tried()
    assert found["held"] or "control group" in found["told"], found
    if found["held"]:
        assert found["said"] == f"42\n{os.getuid()}\n"


@pytest.mark.parametrize(
    ("prefix", "what"),
    [(OTHER, "nothing"), ([*OTHER, *BARE, "--no-new-privs"], "unit")],
    ids=["another user", "what our unit leaves"],
)
def test_as_another_user(prefix, what):
    """It needs no right at all; what our unit refuses is not needed."""
    found = tried(prefix, what)
    assert found["held"], found["told"]
    assert found["said"] == f"42\n{NOBODY}\n"


def test_as_root_without_capabilities():
    """As in a container that drops them: bound by a control group, or refused with the reason."""
    found = tried(["setpriv", *BARE])
    assert found["held"] or "control group" in found["told"], found


def test_where_the_service_manager_refuses_landlock():
    """An older systemd does not count Landlock among what services may do."""
    found = tried(what="old unit")
    assert found["held"] is False
    assert "no Landlock" in found["told"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root is not bound by the limit of processes")
def test_root_without_control_groups_has_no_shell():
    found = tried(what="no groups")
    assert found["held"] is False
    assert found["told"] == (
        "squidbot runs as root, whose processes no limit binds, and no control group can be made; "
        "run squidbot as a user of its own"
    )


async def test_a_machine_that_is_too_slow_is_tried_again_and_one_that_does_not_hold_is_not(
    tmp_path, monkeypatch
):
    """Only what may change is temporary."""
    (tmp_path / "workspace").mkdir()
    sandbox = sandbox_in(tmp_path)

    async def too_late(_order, _serve=None):
        return ProgramOutcome(limit="time")

    async def lets_out(_order, _serve=None):
        return ProgramOutcome(status=0, head=b"secret done\n")

    for run, temporary in ((too_late, True), (lets_out, False)):
        monkeypatch.setattr(order, "run", run)
        proof = await sandbox.prove()
        assert (proof.held, proof.temporary) == (False, temporary)


async def test_places_on_a_disk_that_is_read_only_do_not_stop_the_trial(tmp_path, monkeypatch):
    """As in our container, where only some folders can be written: not even a missing file can be removed."""
    (tmp_path / "workspace").mkdir()
    unlink = Path.unlink

    def refused(path, missing_ok=False):
        if path.is_relative_to("/var/tmp"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    proof = await sandbox_in(tmp_path).prove()
    assert proof.held, str(proof)


@pytest.mark.parametrize("where", ["", "state", "..", "workspace/../state"])
async def test_a_folder_that_shows_squidbots_own_is_refused(tmp_path, where):
    """In ``read_only``; links are followed before it is decided."""
    home = tmp_path / "home"
    (home / "workspace").mkdir(parents=True)
    (home / "state").mkdir()
    (tmp_path / "link").symlink_to(home / where)
    proof = await sandbox_in(home, readable=[tmp_path / "link"]).prove()
    assert proof.held is False
    assert "own folder" in proof.told


async def test_a_folder_that_holds_the_configuration_is_refused(tmp_path):
    home, config = tmp_path / "home", tmp_path / "etc"
    (home / "workspace").mkdir(parents=True)
    config.mkdir()
    sandbox = CommandSandbox(
        SandboxFolders(
            workspace=home / "workspace",
            home=home,
            private_in=home / "commands",
            secret=[config / "squidbot.yaml"],
            readable=[config],
        )
    )
    assert "holds" in (await sandbox.prove()).told
