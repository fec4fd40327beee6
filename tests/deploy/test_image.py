"""The container image, built and run for real: small, without secrets, without rights, healthy, and mortal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.engine import BASE_IMAGE, Engine, layers_bytes
from tests.deploy.images import CANARY

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

_OWN_LAYERS_LIMIT = 375_000_000
_HARD = (
    "--init", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp:size=16m",
    "--memory=700m", "--pids-limit=128",
)  # fmt: skip


@pytest.fixture
def container(engine: Engine, image: str, home_config: Path) -> Iterator[str]:
    """A running squidbot, hardened as compose.yaml does it, checked every second."""
    name = "squid"
    engine.docker(
        "run", "--detach", "--name", name, *_HARD, "--restart=on-failure:3",
        "--health-interval=1s", "--health-retries=3", "--health-timeout=3s",
        "--volume", "squid-state:/var/lib/squidbot",
        "--volume", f"{home_config}:/etc/squidbot/squidbot.yaml:ro",
        image, "run", "--config", "/etc/squidbot/squidbot.yaml",
    )  # fmt: skip
    yield name
    engine.docker("rm", "--force", "--volumes", name)
    engine.docker("volume", "rm", "--force", "squid-state")


def _healthy(engine: Engine, name: str, wanted: str = "healthy") -> None:
    engine.until(wanted, "inspect", "-f", "{{.State.Health.Status}}", name, limit_s=60)


def _pid(engine: Engine, name: str) -> str:
    """The process of squidbot itself, seen from inside, below the init of the container."""
    return engine.out("exec", name, "sh", "-c", "for p in /proc/[0-9]*; do "
                      "tr '\\0' ' ' < $p/cmdline | grep -q '^/opt/squidbot/bin/python.*squidbot run' "
                      "&& basename $p && break; done")  # fmt: skip


def test_our_layers_are_small(engine: Engine, image: str) -> None:
    """All that we add to the base image, with litellm (169 MB) and Pillow (23 MB), stays below 375 MB."""
    assert layers_bytes(engine, image, BASE_IMAGE) < _OWN_LAYERS_LIMIT


def test_models_can_be_had_in_it(engine: Engine, image: str) -> None:
    """What was taken out of the libraries is not missed: litellm makes its first call, to a responder of our own, and
    finds Amazon's descriptions of logging in and of models."""
    told = engine.out(
        "run", "--rm", "--read-only", "--tmpfs=/tmp:size=16m", "--entrypoint", "python", image, "-c",
        "import anyio, boto3, sys\n"
        "from agent_core.llm.litellm.litellm_client import LiteLLMProcess\n"
        "one = LiteLLMProcess()\n"
        "anyio.run(one.start)\n"
        "for name in ('sts', 'bedrock-runtime'):\n"
        "    boto3.client(name, region_name='eu-central-1', aws_access_key_id='x', aws_secret_access_key='y')\n"
        "print(one.ready_report.get('trouble') == '')",
    )  # fmt: skip
    assert told.splitlines()[-1] == "True"


def _canaries(engine: Engine, image: str) -> int:
    """In how many lines of all layers of an image the text stands that every secret of the build holds."""
    pipeline = f"/usr/bin/docker save {image} | tar -xO | grep -caF {CANARY}"
    found = subprocess.run(
        ["sh", "-c", pipeline],
        env=engine.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return int(found.stdout)


def test_nothing_secret_stays_in_a_layer(engine: Engine, image: str, tmp_path: Path) -> None:
    """What is given to the build as a secret is in no layer; a build that keeps it is found out."""
    assert _canaries(engine, image) == 0
    (tmp_path / "ca.pem").write_text(CANARY)
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nUSER 0\nCOPY ca.pem /ca.pem\nRUN rm /ca.pem\n")
    engine.docker("build", "--tag", "leaky", str(tmp_path))
    assert _canaries(engine, "leaky") > 0


def test_it_has_no_rights_and_writes_only_its_state(engine: Engine, container: str) -> None:
    """Not root, no capability, no new ones, system calls filtered, nothing writable but state and /tmp."""
    _healthy(engine, container)
    status = engine.out("exec", container, "cat", f"/proc/{_pid(engine, container)}/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["10001"] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"].strip() == "1"
    assert facts["Seccomp"].strip() == "2"
    for path in ("/x", "/opt/squidbot/x", "/etc/x"):
        assert engine.docker("exec", container, "touch", path, check=False).returncode != 0
    for path in ("/var/lib/squidbot/x", "/tmp/x"):
        engine.docker("exec", container, "touch", path)
    assert engine.out("exec", container, "stat", "-c", "%a", "/var/lib/squidbot/gateway.db") == "600"


def test_one_can_talk_to_it(engine: Engine, container: str) -> None:
    """With nothing configured the built-in model answers in a terminal inside the container."""
    _healthy(engine, container)
    said = engine.out("exec", "-i", container, "sh", "-c", "printf 'hello there\\n/quit\\n' | squidbot chat")
    assert "hello" in said.lower()
    listed = json.loads(engine.out("exec", container, "squidbot", "inbox", "list", "--json"))
    assert [row["state"] for row in listed["rows"]] == ["settled"]


def test_a_blocked_loop_makes_it_unhealthy(engine: Engine, container: str) -> None:
    """A process that is there and does not move is told from one that works."""
    _healthy(engine, container)
    pid = _pid(engine, container)
    engine.docker("exec", container, "sh", "-c", f"kill -STOP {pid}")
    _healthy(engine, container, "unhealthy")
    engine.docker("exec", container, "sh", "-c", f"kill -CONT {pid}")
    _healthy(engine, container)


def test_it_comes_back_after_a_kill(engine: Engine, container: str) -> None:
    """SIGKILL from within the machine: started again by the engine, on the same state, healthy."""
    _healthy(engine, container)
    host_pid = engine.out("inspect", "-f", "{{.State.Pid}}", container)
    subprocess.run(["kill", "-KILL", host_pid], check=True)
    engine.until("1", "inspect", "-f", "{{.RestartCount}}", container)
    _healthy(engine, container)


def test_it_stops_in_order_and_at_once(engine: Engine, container: str) -> None:
    """SIGTERM drains: exit code 0, and idle within the grace time by far."""
    _healthy(engine, container)
    engine.docker("stop", "--time", "30", container)
    assert engine.out("inspect", "-f", "{{.State.ExitCode}}", container) == "0"
    assert "gateway.stopping" in engine.docker("logs", container).stderr


def test_what_is_in_hand_is_finished_first(engine: Engine, container: str) -> None:
    """A model that is still thinking at `docker stop`: its answer is waited for, and the exit code is 0."""
    _healthy(engine, container)
    engine.out("exec", "--detach", container, "sh", "-c", "printf '!slow 4\\n/quit\\n' | squidbot chat")
    engine.until("1", "exec", container, "sh", "-c", "squidbot status --json | grep -c 'turns_running\": 1'")
    engine.docker("stop", "--time", "30", container)
    assert engine.out("inspect", "-f", "{{.State.ExitCode}}", container) == "0"
    told = engine.docker("logs", container).stderr
    assert told.index('"gateway.stopping"') < told.index('"turn.answered"')


def test_a_wrong_configuration_is_said_and_not_tried_again(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    """Exit code 78 with the key and the line; ``restart: on-failure`` gives up by itself after its limit."""
    config = tmp_path / "squidbot.yaml"
    config.write_text("chanels: {}\n")
    config.chmod(0o644)
    done = engine.docker(
        "run", "--rm", *_HARD, "--volume", f"{config}:/etc/squidbot/squidbot.yaml:ro",
        image, "run", "--config", "/etc/squidbot/squidbot.yaml", check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert "chanels" in done.stderr
    assert "line 1" in done.stderr
