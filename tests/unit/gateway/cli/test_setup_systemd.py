"""What `squidbot init` does with systemd: units of a user and of the system, and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.setup.dialogue import UnattendedDialogue
from gateway.cli.setup.options import Given
from gateway.cli.setup.systemd import SystemPlaces, find_unit, install, unit_text
from gateway.cli.setup.wizard import Init
from gateway.settings import load_settings
from gateway.system.home import Home
from tests.clock import EPOCH


@pytest.fixture
def systemd(tmp_path):
    """A systemctl that notes what it is told, and fails at the word in ``fail``."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "systemctl"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'if [ "$2" = "$(cat {tmp_path}/fail 2>/dev/null || echo none)" ]; then echo "no bus" >&2; exit 1; fi\n'
    )
    tool.chmod(0o755)
    (tmp_path / "booted").mkdir()
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return environ, SystemPlaces(units=tmp_path / "units", booted=tmp_path / "booted")


def test_the_user_unit_is_installed_and_started(systemd, tmp_path):
    """With this program and this home; again it changes nothing, another unit is kept aside."""
    environ, places = systemd
    go = lambda: install("user", arguments=["--home", "/x y/%h"], environ=environ, now=EPOCH, places=places)  # noqa: E731
    assert go().running
    unit = tmp_path / "config" / "systemd" / "user" / "squidbot.service"
    [start] = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(' run --home "/x y/%%h"')
    assert Path(start.removeprefix("ExecStart=").split(" run ")[0]).name == "squidbot"
    assert (tmp_path / "calls").read_text().splitlines() == [
        "--user daemon-reload", "--user enable squidbot", "--user restart squidbot",
    ]  # fmt: skip
    assert "exists already" in go().done[0]
    unit.write_text("mine\n")
    go()
    assert [path.read_text() for path in unit.parent.glob("*.bak-*")] == ["mine\n"]


def test_lingering_is_asked_for_once(systemd, tmp_path):
    """Who lingers already is not told to."""
    environ, places = systemd
    places = replace(places, lingering=tmp_path / "linger")
    go = lambda: install("user", arguments=[], environ=environ, now=EPOCH, places=places)  # noqa: E731
    [told] = go().remaining
    assert told.startswith("loginctl enable-linger ")
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / told.split()[2]).touch()
    assert go().remaining == []


def test_what_systemd_refuses_remains_to_be_done(systemd, tmp_path):
    """The reason and the commands that are left; without systemd all of them."""
    environ, places = systemd
    (tmp_path / "fail").write_text("enable")
    result = install("user", arguments=[], environ=environ, now=EPOCH, places=places)
    assert not result.running
    assert "no bus" in result.remaining[0]
    assert [line.strip() for line in result.remaining[1:]] == [
        "systemctl --user enable squidbot", "systemctl --user restart squidbot",
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "booted")
    result = install("user", arguments=[], environ=environ, now=EPOCH, places=places)
    assert "does not run on this machine" in result.remaining[0]
    assert len(result.remaining) == 4


def test_the_system_unit_keeps_what_the_service_manager_hands_over():
    """Only the program changes: home and configuration are the service's own."""
    template = find_unit("system").read_text()
    text = unit_text(template, program=Path("/srv/bin/squidbot"), arguments=["--home", "/x"], own_config=True)
    assert text == template.replace("/opt/squidbot/bin/squidbot run", "/srv/bin/squidbot run")


def test_a_system_service_has_its_configuration_under_etc(systemd, tmp_path, capsys):
    """The file goes where the service manager takes it from; what fails afterwards takes nothing back."""
    environ, places = systemd
    places = replace(places, config=tmp_path / "etc" / "squidbot.yaml", home=tmp_path / "var")
    given = Given(yes=True, matrix=False, email=False, model="demo", install="system")

    def run():
        return Init(
            given, Home(places.home), places.config, UnattendedDialogue(), environ, places=places
        ).run()

    assert run() == 0
    assert load_settings(places.config, environ={}).llm.pools["main"] == ("assistant",)
    assert "squidbot_squidbot.yaml" in (places.units / "squidbot.service").read_text()
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "restart squidbot"
    assert "systemctl status squidbot" in capsys.readouterr().out
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho denied >&2; exit 4\n")
    assert run() == 0
    assert "denied" in capsys.readouterr().out
    assert not places.home.exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_has_no_complaint_about_the_unit(systemd, tmp_path):
    """Of a home with spaces and a percent sign; a broken line is complained about."""
    environ, places = systemd
    install("user", arguments=["--home", "/x y/%h"], environ=environ, now=EPOCH, places=places)
    unit = tmp_path / "config" / "systemd" / "user" / "squidbot.service"

    def complaints():
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(unit)],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        )  # fmt: skip
        return [line for line in done.stderr.splitlines() if "squidbot.service" in line]

    assert complaints() == []
    unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSecs=60"))
    assert complaints() != []
