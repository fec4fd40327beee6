"""`squidbot demo`, as the README's first command runs it: real servers, real daemon, and a folder that is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.setup.model_probe import ollama_models

REPOSITORY = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("synapse", "mail_server")]


def demo(folder, *lines):
    """What is shown to somebody who types these lines; the built-in model answers."""
    if ollama_models():
        pytest.skip("the Ollama on this machine would answer")
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "demo", "--keep", str(folder)],
        input="\n".join([*lines, "/quit"]), capture_output=True, text=True, timeout=110, check=False,
        env={**environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_kept_folder_is_used_again(tmp_path):
    """The accounts are there already, and the assistant remembers what it was told in the first demo."""
    first = demo(tmp_path / "d", "remember that my favourite colour is green", "/mail hello", "/console")
    second = demo(tmp_path / "d", "what do you know about me?")
    assert "bot> I will remember" in first
    assert "(mail, " in first
    assert "/console/enter?token=" in first
    assert "- my favourite colour is green" in second


def test_a_folder_that_cannot_be_made(tmp_path):
    """A sentence, and the exit code of docs/commands.md."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "demo", "--keep", str(tmp_path / "file")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr == f"squidbot: {tmp_path}/file cannot be created: File exists\n"
