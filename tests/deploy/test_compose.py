"""compose.yaml on a real engine: one command, and there is a bot that one can talk to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.engine import Engine
from tests.deploy.images import ROOT, compose_plugin

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]


def _compose(engine: Engine, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    plugins = engine.folder / "client" / "cli-plugins"
    if not plugins.exists():
        plugins.mkdir(parents=True)
        shutil.copy(compose_plugin(), plugins / "docker-compose")
    return engine.docker(
        "compose", "--project-directory", str(ROOT), "-p", "squidtest", *arguments, check=check
    )


@pytest.fixture
def up(engine: Engine, image: str) -> Iterator[Engine]:
    """The services of the default profile, healthy."""
    _compose(engine, "up", "--detach", "--wait", "--wait-timeout", "60")
    yield engine
    _compose(engine, "down", "--volumes")


def test_one_can_talk_to_it(up: Engine) -> None:
    """`up` and `exec … chat`, nothing else: the built-in model answers and the message is settled."""
    asked = subprocess.run(
        ["/usr/bin/docker", "compose", "--project-directory", str(ROOT), "-p", "squidtest", "exec", "-T",
         "squidbot", "squidbot", "chat"],
        env=up.environment, input="hello there\n/quit\n", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "hello" in asked.stdout.lower()
    rows = json.loads(_compose(up, "exec", "-T", "squidbot", "squidbot", "inbox", "list", "--json").stdout)[
        "rows"
    ]
    assert [row["state"] for row in rows] == ["settled"]


def test_it_runs_without_rights(up: Engine) -> None:
    """What compose.yaml says about rights is in force."""
    name = _compose(up, "ps", "-q", "squidbot").stdout.strip()
    told = json.loads(up.out("inspect", name))[0]["HostConfig"]
    assert told["ReadonlyRootfs"] is True
    assert told["CapDrop"] == ["ALL"]
    assert told["SecurityOpt"] == ["no-new-privileges:true"]
    assert told["Memory"] == 800 * 1024 * 1024


def test_state_outlives_the_container(up: Engine) -> None:
    """A new container on the same volume knows what was said before."""
    _compose(up, "up", "--detach", "--wait", "--force-recreate", "squidbot")
    listed = json.loads(_compose(up, "exec", "-T", "squidbot", "squidbot", "status", "--json").stdout)
    assert listed["channels"]


def test_a_typo_in_the_file_is_an_error(engine: Engine, tmp_path: Path) -> None:
    """The file is valid as it is, and a misspelt key is not."""
    assert _compose(engine, "config", "--quiet").stderr == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace_periode"))
    assert _compose(engine, "-f", str(wrong), "config", "--quiet", check=False).returncode != 0
