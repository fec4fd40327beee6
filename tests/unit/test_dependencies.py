"""Libraries that a stranger's bytes could keep busy or break stay at the versions in which that was mended."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
BAD = {"aiohttp": "3.14.2", "idna": "3.14", "orjson": "3.11.5"}
"""The last version of each with the defect, as CHANGELOG.md tells it."""


@pytest.mark.parametrize(("name", "version"), BAD.items())
def test_a_version_with_a_known_defect_is_not_accepted(name, version):
    """Neither by `pip install` nor in what `uv.lock` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [asked] = [each for each in map(Requirement, project["dependencies"]) if each.name == name]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    [locked] = [each["version"] for each in lock["package"] if each["name"] == name]
    assert version not in asked.specifier
    assert locked in asked.specifier
    assert version in Requirement(name).specifier  # the control: without a bound it would be taken
