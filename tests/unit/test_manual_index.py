"""The index of the manual answers what people look for: each question has a row, and the row leads to a section."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "README.md"
QUESTIONS = {
    "connect Home Assistant": "mcp-recipes.md",
    "Grafana": "webhooks.md",
    "Prometheus, Grafana": "service.md",
    "second person": "adding-a-person.md",
    "OpenRouter": "models.md",
    "in containers": "service.md",
    "tool in a package of your own": "own-tools.md",
    "add a channel": "own-channel.md",
    "approve on a page": "console.md",
    "move to another machine": "data.md",
    "limit the cost": "models.md#the-daily-budget",
    "limit access": "people.md",
    "a personality": "personality.md",
    "mail or a message was not answered": "troubleshooting.md#it-does-not-answer",
}


def headings(page: Path) -> set[str]:
    """The anchors of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


@pytest.mark.parametrize(("words", "target"), QUESTIONS.items(), ids=list(QUESTIONS))
def test_a_question_has_a_row_that_leads_to_its_answer(words: str, target: str) -> None:
    rows = [line for line in INDEX.read_text().splitlines() if words in line and f"({target})" in line]
    name, _, anchor = target.partition("#")
    page = INDEX.parent / name
    assert len(rows) >= 1
    assert not anchor or anchor in headings(page)


def test_the_index_leads_to_every_page() -> None:
    """And the first page leads to the index."""
    linked = set(re.findall(r"\(([\w-]+\.md)", INDEX.read_text()))
    pages = {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert pages <= linked
    assert "docs/README.md" in (ROOT / "README.md").read_text()


def unrendered_links(text: str) -> set[str]:
    """The pages that are linked, seen from the manual's folder, and that `make docs` does not take along."""
    found = re.search(r"git ls-files -z (.+?) \|", (ROOT / "Makefile").read_text())
    assert found is not None
    listed = subprocess.check_output(["git", "ls-files", *shlex.split(found[1])], cwd=ROOT, text=True)
    rendered = {ROOT / name for name in listed.splitlines()}
    linked = set(re.findall(r"\]\((?!\w+:)([\w./-]+\.md)", text))
    return {link for link in linked if (INDEX.parent / link).resolve() not in rendered}


def test_every_page_that_is_linked_is_rendered() -> None:
    """A link to a page that is left out breaks `make docs`."""
    assert {
        page.name: left for page in INDEX.parent.glob("*.md") if (left := unrendered_links(page.read_text()))
    } == {}
    assert unrendered_links("[a](console.md) [b](../tests/unit/README.md)") == {"../tests/unit/README.md"}


def test_a_row_that_leads_nowhere_is_noticed() -> None:
    """The control."""
    assert "no-such-section" not in headings(INDEX.parent / "models.md")
    assert "the-daily-budget" in headings(INDEX.parent / "models.md")


LONG = {"benchmarks.md": 1820, "dependencies.md": 1080, "glossary.md": 1230}
"""Tables in which one looks something up; each number may only fall."""
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def words(text: str) -> int:
    """The words of a page without its blocks of code."""
    return len(_BLOCK.sub("", text).split())


def test_no_page_is_long() -> None:
    """At most 900 words: a page is for one task or one question."""
    pages = {page.name: words(page.read_text()) for page in INDEX.parent.glob("*.md")}
    assert {name: count for name, count in pages.items() if count > LONG.get(name, 900)} == {}
    assert {name for name, most in LONG.items() if pages[name] <= most - 60} == set(), "lower its number"


def test_a_long_page_is_noticed() -> None:
    """The control; a block of code does not count."""
    assert words("one two\n```yaml\nthree: four\n```\nfive") == 3
