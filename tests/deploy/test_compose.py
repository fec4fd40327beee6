"""compose.yaml on a real engine: one command, and there is a bot that one can talk to."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.compose import Compose, build_standin, own_secrets
from tests.deploy.engine import Engine
from tests.deploy.images import ROOT, index_settings, published

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(700)]


TEN_MINUTES_S = 600


@pytest.fixture
def up(engine: Engine, image: str) -> Iterator[Compose]:
    """The services of the default profile, healthy."""
    compose = Compose(engine)
    compose.run("up", "--detach", "--wait", "--wait-timeout", "60")
    yield compose
    compose.run("down", "--volumes")


def test_one_can_talk_to_it(up: Compose) -> None:
    """`up` and `exec … chat`, nothing else: the built-in model answers and the message is settled."""
    assert "hello" in up.squidbot("chat", text="hello there\n/quit\n").lower()
    rows = json.loads(up.squidbot("inbox", "list", "--json"))["rows"]
    assert [row["state"] for row in rows] == ["settled"]


def test_all_commands_know_the_configuration(up: Compose) -> None:
    """`exec squidbot squidbot check` needs no option, and a backup holds the configuration."""
    told = json.loads(up.squidbot("check", "--json"))
    assert {"name": "configuration", "state": "ok"}.items() <= told["checks"][0].items()
    up.squidbot("backup", "/var/lib/squidbot/b.tar.gz")
    looked = json.loads(up.squidbot("restore", "/var/lib/squidbot/b.tar.gz", "--look", "--json"))
    assert any("/etc/squidbot/squidbot.yaml" in note for note in looked["notes"])


def test_a_backup_comes_back(up: Compose) -> None:
    """As the operations chapter says it for containers: stop, restore in the place of what is there, start."""
    up.squidbot("chat", text="hello there\n/quit\n")
    up.squidbot("backup", "/var/lib/squidbot/backups")
    name = up.run("exec", "-T", "squidbot", "ls", "/var/lib/squidbot/backups").stdout.strip()
    up.squidbot("chat", text="said later\n/quit\n")
    up.run("stop", "squidbot")
    file = f"/var/lib/squidbot/backups/{name}"
    up.run("run", "--rm", "--no-deps", "-T", "squidbot", "restore", file, "--replace", "--yes")
    up.run("up", "--detach", "--wait", "squidbot")
    texts = [row["text"] for row in json.loads(up.squidbot("inbox", "list", "--json"))["rows"]]
    assert texts == ["hello there"]


def test_it_runs_without_rights(up: Compose) -> None:
    """What compose.yaml says about rights is in force."""
    name = up.run("ps", "-q", "squidbot").stdout.strip()
    told = json.loads(up.engine.out("inspect", name))[0]["HostConfig"]
    assert told["ReadonlyRootfs"] is True
    assert told["CapDrop"] == ["ALL"]
    assert told["SecurityOpt"] == ["no-new-privileges:true"]
    assert told["Memory"] == 800 * 1024 * 1024


def test_state_outlives_the_container(up: Compose) -> None:
    """A new container on the same volume knows what was said before."""
    up.squidbot("chat", text="hello there\n/quit\n")
    up.run("up", "--detach", "--wait", "--force-recreate", "squidbot")
    rows = json.loads(up.squidbot("inbox", "list", "--json"))["rows"]
    assert [row["state"] for row in rows] == ["settled"]


def test_from_a_clone_with_two_commands(engine: Engine, tmp_path: Path) -> None:
    """
    `git clone`, `docker compose up --build` and `exec … chat`: an answer within ten minutes, from what is in the
    repository and nothing else. A private index's settings come in as files; without them they are empty.
    """
    published(tmp_path / "squidbot.git")
    begun = time.monotonic()
    clone = tmp_path / "squidbot"
    subprocess.run(["git", "clone", "-q", str(tmp_path / "squidbot.git"), str(clone)], check=True)
    compose = Compose(engine, project="squidclone", folder=clone, environment=index_settings(engine))
    try:
        compose.run("up", "--detach", "--build", "--wait", limit_s=TEN_MINUTES_S)
        assert "hello" in compose.squidbot("chat", text="hello there\n/quit\n").lower()
        took_s = time.monotonic() - begun
        print(f"git clone to an answer, with compose: {took_s:.0f} s")
        assert took_s < TEN_MINUTES_S
        Compose(engine, project="squidclone", folder=clone).run("build")  # all of it is there already
    finally:
        compose.run("down", "--volumes", check=False)


def test_a_model_on_one_s_own_machine(engine: Engine, image: str, tmp_path: Path) -> None:
    """
    The profile `model`, with the lines about it in local-servers.yaml no longer comments: one command waits until the
    model is fetched, succeeds, and it is that model which answers. Ollama's own image is stood in for.
    """
    example = (ROOT / "deploy/compose/local-servers.yaml").read_text()
    lines = example[example.index("# llm:") :].splitlines()
    config = tmp_path / "squidbot.yaml"
    config.write_text("\n".join(line.removeprefix("# ") for line in lines))
    config.chmod(0o644)
    compose = Compose(
        engine,
        project="squidmodel",
        profiles=("model",),
        environment={
            **own_secrets(tmp_path / "secrets"),
            "SQUIDBOT_CONFIG": str(config),
            "OLLAMA_IMAGE": build_standin(engine, "ollama"),
        },
    )
    try:
        compose.run("up", "--detach", "--wait", "--wait-timeout", "90")
        assert "I am qwen3:4b" in compose.squidbot("chat", text="hello there\n/quit\n")
        compose.run("stop", "squidbot")
        compose.run("exec", "-T", "ollama", "rm", "/models/qwen3:4b")
        assert "unhealthy" in _until_unhealthy(compose)
    finally:
        compose.run("down", "--volumes", check=False)


def _until_unhealthy(compose: Compose) -> str:
    """What the engine says of a server whose model is gone."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        told = compose.run("ps", "--format", "{{.Status}}", "ollama").stdout
        if "unhealthy" in told:
            return told
        time.sleep(0.5)
    return told


def test_a_typo_in_the_file_is_an_error(engine: Engine, tmp_path: Path) -> None:
    """The file is valid as it is, and a misspelt key is not."""
    assert Compose(engine).run("config", "--quiet").stderr == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace_periode"))
    assert Compose(engine).run("-f", str(wrong), "config", "--quiet", check=False).returncode != 0
