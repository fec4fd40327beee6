"""A release: `make dist` makes the same bytes twice, and what it makes is squidbot where nothing else is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1200, func_only=True)]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Path]:
    """Two folders with what two builds have made of one clone."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "clone")], check=True)
    for name in ("one", "two"):
        subprocess.run(["make", "-s", "dist", f"DIST={folder / name}"], cwd=folder / "clone", check=True)
    return [folder / "one", folder / "two"]


def test_the_same_commit_makes_the_same_bytes(built):
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in built)
    assert sorted(one) == sorted(two)
    assert [name for name in one if one[name] != two[name]] == []
    assert {Path(name).suffix for name in one} >= {".whl", ".gz", ".json"}


def test_the_bills_name_what_is_locked(built):
    """Each with its version; the image has fewer than the wheel with all extras."""
    locked = {
        each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    wheel, image = (
        {
            one["name"]: one["version"]
            for one in json.loads((built[0] / f"{name}.cdx.json").read_text())["components"]
        }
        for name in ("wheel", "image")
    )
    assert wheel.items() <= locked.items()
    assert image.items() < wheel.items()
    assert {"aiohttp", "mcp", "psycopg"} <= image.keys()


def test_the_image_has_these_extras():
    """The bill of the image is made of the extras that the Dockerfile names."""
    named = set(re.findall(r"--extra (\w+)", (ROOT / "Dockerfile").read_text()))
    assert named == set(re.findall(r"--extra (\w+)", (ROOT / "Makefile").read_text()))


def test_the_wheel_alone(built, tmp_path):
    """In an empty environment the demo's tour passes."""
    [wheel] = built[0].glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SQUIDBOT"))}
    done = subprocess.run(
        [str(python.parent / "squidbot"), "demo", "--tour"],
        cwd=tmp_path,
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
