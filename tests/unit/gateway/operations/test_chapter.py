"""The operations chapter is whole: every alert is in it and no other, and every command that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gateway.cli.commands import app

ROOT = Path(__file__).resolve().parents[4]
CHAPTER = (ROOT / "deploy" / "OPERATIONS.md").read_text()
README = (ROOT / "README.md").read_text()
_COMMAND = re.compile(r"(?:^|[`/&] ?|bin/)squidbot ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)


def alerts():
    """The names of all rules."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def unknown(text):
    """Commands of squidbot that a text names and that do not exist."""
    return [word for word, _ in _COMMAND.findall(text) if word not in app]


def test_every_alert_has_a_paragraph():
    """In the order of the rules, each once; and a row of the table in the README."""
    assert re.findall(r"^\*\*(Squidbot\w+)\.\*\*", CHAPTER, re.MULTILINE) == alerts()
    rows = re.findall(r"^\| ([\w, ]+) \| ", README[README.index("| alert | do |") :], re.MULTILINE)
    named = {f"Squidbot{name}" for row in rows for name in row.split(", ")}
    assert named >= set(alerts())


def test_every_subject_has_a_heading():
    """What an operator looks for."""
    headings = re.findall(r"^## (.+)$", CHAPTER, re.MULTILINE)
    assert {"Install", "Upgrade", "Backup", "After a loss", "Moving", "Uninstall", "Monitoring"} <= set(
        headings
    )


def test_every_command_exists():
    """No command of the chapter is misspelt; a misspelt one would be found."""
    assert len(_COMMAND.findall(CHAPTER)) > 15
    assert unknown(CHAPTER) == []
    assert unknown("`squidbot stauts`") == ["stauts"]
