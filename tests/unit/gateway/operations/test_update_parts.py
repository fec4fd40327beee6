"""What `squidbot update --check` makes of a changelog, of requirements, and of two sets of settings."""

from __future__ import annotations

import zipfile
from importlib.metadata import Distribution

import pytest

from gateway.operations.update.new_version import (
    NoNewVersion,
    _unsatisfied,
    changes_between,
    find_new_version,
)
from gateway.operations.update.trial import SettingChange, changed_settings

OLD = """\
# Changelog

## [0.1.0]

### The daemon
- It starts.
"""
NEW = """\
# Changelog

## [Unreleased]

- It sings.

## [0.2.0] - 2026-12-01

Some words about it.

### The daemon
- It stops, and says
  why.
- It starts.

## [0.1.0]

### The daemon
- It starts quickly.
"""


def test_what_is_new_is_what_the_older_changelog_lacks():
    found = changes_between(OLD, NEW, "0.1.0")
    assert [(each.release, each.section, each.text) for each in found] == [
        ("Unreleased", "", "It sings."),
        ("0.2.0", "The daemon", "It stops, and says why."),
    ]


def test_without_a_changelog_here_the_releases_after_this_one_are_new():
    assert [each.text for each in changes_between("", NEW, "0.1.0")][-1] == "It starts."
    assert [each.text for each in changes_between("", NEW, "0.2.0")] == ["It sings."]


def test_settings_that_differ():
    before = {"llm": {"limits": {"steps": 20, "seconds": 600}}, "mcp": {"servers": {}}}
    after = {"llm": {"limits": {"steps": 25, "calls": 3}}, "mcp": {"servers": {}}}
    assert changed_settings(before, after) == [
        SettingChange("llm.limits.steps", 20, 25),
        SettingChange("llm.limits.seconds", 600, None),
        SettingChange("llm.limits.calls", None, 3),
    ]


def test_a_library_that_does_not_suffice_is_named(tmp_path):
    wanted = ["packaging>=1", "packaging>=9999", "no-such-thing-at-all>=2", "x>=1; extra == 's3'"]
    lines = ["Metadata-Version: 2.1", "Name: x", "Version: 1", *(f"Requires-Dist: {each}" for each in wanted)]
    (tmp_path / "METADATA").write_text("\n".join(lines))
    assert [each.split(" ")[0] for each in _unsatisfied(Distribution.at(tmp_path))] == [
        "packaging>=9999",
        "no-such-thing-at-all>=2",
    ]


def test_what_is_no_squidbot_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "other-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    (tmp_path / "broken.whl").write_bytes(b"PK")
    for number, name in enumerate(("folder", "other-1.0-py3-none-any.whl", "broken.whl", "nothing")):
        with pytest.raises(NoNewVersion, match=name):
            find_new_version(tmp_path / name, tmp_path / f"stage{number}")
