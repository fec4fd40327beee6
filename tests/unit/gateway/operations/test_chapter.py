"""The pages for people are whole: every alert is told of, and every command and file that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gateway.cli.commands import app

ROOT = Path(__file__).resolve().parents[4]
CHAPTER = (ROOT / "deploy" / "OPERATIONS.md").read_text()
SERVICE = (ROOT / "docs" / "service.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_COMMAND = re.compile(r"(?:^|[`/&] ?|bin/)squidbot ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)


def alerts():
    """The names of all rules."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def unknown(text):
    """Commands of squidbot that a text names and that do not exist."""
    return [word for word, _ in _COMMAND.findall(text) if word not in app]


def test_every_alert_has_a_paragraph():
    """In the order of the rules, each once; and a row of the table in docs/service.md."""
    assert re.findall(r"^\*\*(Squidbot\w+)\.\*\*", CHAPTER, re.MULTILINE) == alerts()
    rows = re.findall(r"^\| ([\w, ]+) \| ", SERVICE[SERVICE.index("| alert | do |") :], re.MULTILINE)
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


def test_the_pages_name_commands_that_exist():
    """No command of the README or of a page in docs/ is misspelt."""
    assert {page: wrong for page in PAGES if (wrong := unknown(code_in(page.read_text())))} == {}
    assert unknown(code_in("squidbot is small; see `squidbot stauts`")) == ["stauts"]


def code_in(text):
    """What stands in a block of code or between backticks, a line for each."""
    return "\n".join(block or inline for block, inline in _CODE.findall(text))


def test_the_readme_is_short_and_names_every_page():
    """At most 130 lines; each page of docs/ can be reached from it, from docs/README.md or from ARCHITECTURE.md."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    text += (ROOT / "ARCHITECTURE.md").read_text() + (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in PAGES if page.parent.name == "docs"}
    assert pages <= set(re.findall(r"(?:docs/|\()([\w-]+\.md)", text)) | {"README.md"}
