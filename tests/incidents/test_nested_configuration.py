"""A configuration that is nested deeply ended in exit 1, which a service manager restarts on, instead of 78."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("depth", [60, 400, 20_000])
@pytest.mark.parametrize("form", ["[", "{a: ", "- ", "? "])
def test_it_is_refused_in_words(tmp_path, depth, form):
    """Whatever the depth and the form: the same kind of error as any other mistake in the file."""
    path = tmp_path / "squidbot.yaml"
    path.write_text(
        f"owner: {form * depth}"[:999_000] if form in "[{a: " else f"owner:\n  {form * depth}"[:999_000]
    )
    with pytest.raises(ConfigInvalid):
        load_settings(path)


def test_so_much_is_fine(tmp_path):
    """The control: a file that is nested as far as settings are."""
    path = tmp_path / "squidbot.yaml"
    path.write_text("gateway: {log: {level: info}}\n")
    load_settings(path)


@pytest.mark.parametrize("command", [["run"], ["config", "check"]])
def test_the_exit_code_is_that_of_a_configuration(tmp_path, command):
    """A service manager does not restart on 78."""
    (tmp_path / "squidbot.yaml").write_text("owner: " + "[" * 3000)
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *command, "--home", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "nested" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
