"""Prometheus's own tool on the rules and the configuration, and Prometheus itself beside squidbot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from devservers.ports import lease_ports
from tests.deploy.compose import Compose, build_standin, own_secrets
from tests.deploy.engine import Engine
from tests.deploy.images import ROOT
from tests.unit.gateway.observability.test_metrics import queries

pytestmark = [pytest.mark.deploy]

FOLDER = ROOT / "deploy" / "prometheus"


@pytest.fixture
def promtool() -> str:
    """The program."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (make service-test installs Debian's prometheus)")
    return found


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)


def test_the_rules_do_what_they_say(promtool: str) -> None:
    """They are valid, and each fires when it should and not before (alerts_test.yml)."""
    for what in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        done = _run(promtool, *what)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_is_valid(promtool: str, tmp_path: Path) -> None:
    """Prometheus takes prometheus.yml, with the rules where compose.yaml puts them."""
    config = tmp_path / "prometheus.yml"
    text = (FOLDER / "prometheus.yml").read_text()
    config.write_text(text.replace("/etc/prometheus/alerts.yml", str(FOLDER / "alerts.yml")))
    done = _run(promtool, "check", "config", config)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_rule_is_found(promtool: str, tmp_path: Path) -> None:
    """A rule that fires earlier than its test expects fails the test."""
    for name in ("alerts.yml", "alerts_test.yml"):
        shutil.copy(FOLDER / name, tmp_path)
    rules = tmp_path / "alerts.yml"
    rules.write_text(
        rules.read_text().replace("squidbot_channel_up == 0\n        for: 10m", "squidbot_channel_up == 0")
    )
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "SquidbotChannelDown" in done.stdout + done.stderr


def test_prometheus_sees_squidbot(engine: Engine, image: str, tmp_path: Path) -> None:
    """The profile `monitoring` as it is, Grafana apart: the target is up, all rules are loaded, none fires."""
    [lease] = lease_ports(1, tmp_path / "ports")
    compose = Compose(
        engine,
        project="squidwatch",
        profiles=("monitoring",),
        environment={
            **own_secrets(tmp_path / "secrets"),
            "PROMETHEUS_IMAGE": build_standin(engine, "prometheus"),
            "PROMETHEUS_PORT": str(lease.port),
        },
    )

    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{lease.port}/api/v1/{path}", timeout=5) as answer:
            return json.loads(answer.read())["data"]

    def up() -> bool:
        try:
            return [one["health"] for one in asked("targets")["activeTargets"]] == ["up"]
        except OSError:
            return False

    try:
        compose.run("up", "--detach", "--wait", "--wait-timeout", "90", "squidbot", "prometheus")
        end = time.monotonic() + 60
        while not up():
            assert time.monotonic() < end, compose.run("logs", "--tail", "20").stdout
            time.sleep(0.5)
        [group] = asked("rules")["groups"]
        assert len(group["rules"]) == (FOLDER / "alerts.yml").read_text().count("- alert:")
        assert {rule["state"] for rule in group["rules"]} == {"inactive"}
        names = set(asked("label/__name__/values"))
        assert {"squidbot_channel_up", "squidbot_turns_stalled", "squidbot_queue_rows"} <= names

        # Whatever rules and dashboard ask is understood, and every panel that shows a state has one to show.
        found = {query: asked(f"query?query={quote(query)}")["result"] for query in queries()}
        states = [query for query in found if re.fullmatch(r"squidbot_\w+(\{[^}]*\})?|process_\w+", query)]
        assert len(states) > 10
        assert [query for query in states if not found[query]] == []
        with pytest.raises(urllib.error.HTTPError):
            asked(f"query?query={quote('sum by (channel) (squidbot_queue_rows')}")
    finally:
        compose.run("down", "--volumes", check=False)
        lease.release()
