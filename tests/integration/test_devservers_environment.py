"""Tool environments are made once, whole or not at all, with whatever installer is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import devservers
from devservers import ToolsMissing
from devservers.environment import cache_folder, prepare_tools
from tests.servers import skipped_without_tools

PACKAGES = Path(devservers.__file__).parents[1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; skips where the mail tools cannot be installed at all."""
    monkeypatch.setenv("SQUIDBOT_CACHE", str(tmp_path / "cache"))
    with skipped_without_tools():
        prepare_tools("mail")
    return tmp_path / "cache"


def can_import(python: Path) -> bool:
    return subprocess.run([python, "-I", "-c", "import aiosmtpd, trustme, pymap"]).returncode == 0


def test_second_use_says_and_does_nothing(cache: Path) -> None:
    """Once made, an environment is only looked up."""
    said: list[str] = []

    python = prepare_tools("mail", say=said.append)

    assert said == []
    assert python.is_relative_to(cache)
    assert can_import(python)


def test_interrupted_earlier_try(cache: Path) -> None:
    """A half-made environment, recognised by its missing marker, is thrown away and made anew."""
    python = prepare_tools("mail")
    folder = python.parents[1]
    (folder / "ready.json").unlink()
    (folder / "half").write_text("done")
    python.unlink()

    said: list[str] = []
    again = prepare_tools("mail", say=said.append)

    assert "mail tools" in said[0]
    assert not (folder / "half").exists()
    assert can_import(again)


def test_other_requirements(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Changed pins make a new environment; pins whose hashes do not fit make none."""
    original = Path(devservers.__file__).with_name("requirements") / "mail.txt"
    (tmp_path / "mail.txt").write_text(re.sub("sha256:....", "sha256:0000", original.read_text()))
    monkeypatch.setattr(devservers.environment, "REQUIREMENTS", tmp_path)

    with pytest.raises(ToolsMissing, match="could not install the mail tools"):
        prepare_tools("mail")

    assert not list(cache.glob("tools/mail-*/ready.json"))


def test_two_at_once(cache: Path, tmp_path: Path) -> None:
    """Two processes that need the same environment get one whole environment."""
    script = "from devservers.environment import prepare_tools; print(prepare_tools('mail', say=print))"
    environment = os.environ | {"SQUIDBOT_CACHE": str(tmp_path / "other"), "PYTHONPATH": str(PACKAGES)}
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]

    said = [process.communicate()[0] for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sum("installed in" in text for text in said) == 1
    [python] = {Path(text.splitlines()[-1]) for text in said}
    assert can_import(python)


def test_without_uv(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no uv, Python's own venv and pip do the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("SQUIDBOT_CACHE", str(tmp_path / "pip"))

    python = prepare_tools("mail")

    assert can_import(python)
    assert (python.parent / "pip").exists()


def test_broken_uv(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An uv that does not work (or has no index) is not the end: pip is tried, too."""
    monkeypatch.setenv("UV", str(tmp_path / "no-such-uv"))
    monkeypatch.setenv("SQUIDBOT_CACHE", str(tmp_path / "broken"))

    assert can_import(prepare_tools("mail"))


def test_an_installation_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one for all ways: an installer that hangs is ended, and none is begun after it."""
    hangs = tmp_path / "uv"
    hangs.write_text("#!/bin/sh\nexec sleep 100\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("UV", str(hangs))
    monkeypatch.setenv("SQUIDBOT_CACHE", str(tmp_path / "cache"))

    with pytest.raises(ToolsMissing, match=r"given up: it takes too long\n.*given up"):
        prepare_tools("mail", limit_s=0.5)

    assert not list(tmp_path.glob("cache/tools/mail-*/"))


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our own variable wins over the desktop's, which wins over the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SQUIDBOT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "squidbot"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "squidbot"

    monkeypatch.setenv("SQUIDBOT_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
