"""Prometheus's own tool on the rules and the configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.images import ROOT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(120)]

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
