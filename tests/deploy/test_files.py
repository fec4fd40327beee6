"""What can be said about the files of a deployment without running anything of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.images import ROOT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(60)]

DOCKERFILES = ["Dockerfile", "deploy/compose/mail/Dockerfile"]


@pytest.fixture
def hadolint() -> str:
    """The program."""
    found = shutil.which("hadolint") or shutil.which(ROOT / ".cache/deploy/hadolint/bin/hadolint")
    if found is None:
        pytest.skip("hadolint is not there (make service-test gets it from PyPI)")
    return found


@pytest.mark.parametrize("file", DOCKERFILES)
def test_a_dockerfile_is_clean(hadolint: str, file: str) -> None:
    """hadolint has nothing to say; what it may not say stands beside the line that it is about."""
    done = subprocess.run([hadolint, ROOT / file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_poor_dockerfile_is_found(hadolint: str, tmp_path: Path) -> None:
    """The control: the same file with a latest tag and a `cd`."""
    poor = tmp_path / "Dockerfile"
    poor.write_text(
        (ROOT / "Dockerfile").read_text() + "\nFROM debian\nRUN cd /tmp && apt-get install curl\n"
    )
    done = subprocess.run([hadolint, poor], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3006" in done.stdout


@pytest.mark.parametrize("file", DOCKERFILES)
def test_every_base_image_can_be_named_by_the_builder(file: str) -> None:
    """FROM goes through an ARG, so that a digest or an own registry needs no change of the file; no frontend is fetched."""
    lines = (ROOT / file).read_text().splitlines()
    assert all(line.split()[1].startswith("${") for line in lines if line.startswith("FROM "))
    assert not lines[0].startswith("# syntax")


def test_the_sandbox_is_tight(tmp_path: Path) -> None:
    """`systemd-analyze security` rates the exposure 1.5 or lower, and a unit without the sandbox higher."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = ROOT / "deploy/systemd/squidbot.service"
    command = [program, "security", "--offline=true", "--threshold=15"]
    told = subprocess.run([*command, unit], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    bare = tmp_path / "squidbot.service"
    bare.write_text("".join(f"{line}\n" for line in unit.read_text().splitlines() if "Private" not in line))
    assert subprocess.run([*command, bare], capture_output=True, check=False).returncode == 1
