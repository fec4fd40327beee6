"""The sandbox of the shell in a container of a real engine, hardened as compose.yaml has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.engine import BASE_IMAGE, Engine
from tests.deploy.test_shell_in_unit import copy_what_is_tried

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--init")
TRY = "/opt/try/tests/unit/agent_core/sandbox/standing.py"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sandbox of the shell, without the rest of squidbot."""
    folder = tmp_path_factory.mktemp("container") / "try"
    copy_what_is_tried(folder)
    for path in (folder.parent, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder


def tried(
    engine: Engine, source: Path, *options: str, user: str = "10001:10001", backend: str = "auto"
) -> dict[str, object]:
    """What comes of the trial in a container with these options."""
    done = engine.docker(
        "run", "--rm", *options, "--user", user, "--network", "none", "--tmpfs", "/tmp:size=64m,mode=1777",
        "--tmpfs", "/home/squidbot:size=64m,mode=1777", "-v", f"{source}:/opt/try:ro",
        BASE_IMAGE, "python3", "-W", "ignore", TRY, "/opt/try/lib", "/home/squidbot/home", "nothing", backend,
        check=False, limit_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("backend", ["landlock", "auto"])
def test_it_holds_without_any_capability(engine: Engine, source: Path, backend: str) -> None:
    """T7: our compose options: all capabilities dropped, nothing may be gained, `/` cannot be written."""
    found = tried(engine, source, *HARDENED, backend=backend)
    assert found["held"], found
    assert str(found["told"]).startswith("Landlock")
    assert found["said"] == "42\n10001\n"


def test_root_in_a_container_has_no_shell(engine: Engine, source: Path) -> None:
    """No limit of processes binds root, and no control group can be made there."""
    found = tried(engine, source, *HARDENED, user="0:0")
    assert found["held"] is False
    assert "run squidbot as a user of its own" in str(found["told"])
