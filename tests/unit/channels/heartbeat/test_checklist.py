"""Whether HEARTBEAT.md asks for anything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from channels.heartbeat.checklist import has_work
from tests.rows import rows

NOTHING = [
    "",
    "\n\n  \n\t\n",
    "\ufeff",
    "# Heartbeat",
    "#\n##\n###### deep",
    "-\n*\n+\n1.\n2)",
    "- \n-\t\n",
    "- [ ]\n- []\n* [x]",
    "- [x] done\n- [X] done too\n1. [x] done",
    "- [x] done\n  with a second line\n\n  and a third\n  - and a detail\n  - [x] and a box",
    "<!-- nothing -->",
    "<!--\n- call mum\n- [ ] water\n-->\n# Title",
    "# A <!-- x --> \n<!----><!-- y -->",
    "[//]: # (a comment of Markdown)\n[comment]: <> (another)",
    "---\n***\n___\n- - -\n===",
    "> \n>\n> # quoted heading",
    "```\n```",
    "# Heartbeat\r\n\r\n- [x] done\r\n",
]
WORK = [
    "call mum",
    "- call mum",
    "* call mum",
    "1. call mum",
    "- [ ] call mum",
    "- [] call mum",
    "* [ ] call mum",
    "- [x] done\n- [ ] not done",
    "- [x] done\n  - [ ] a part of it is not",
    "- [x] done\ncall mum",
    "- [x] done\n- call mum",
    "  - [x] done\n- call mum",
    "<!-- never closed\ncall mum",
    "<!-- closed --> call mum",
    "<!-- a --> <!-- b\ncall mum",
    "#hashtag is no heading",
    "####### seven",
    "> call mum",
    "[a link](https://example.org)",
    "-5 degrees: warm the car",
    "- [?] unclear",
    "- [x]done without a space",
    "```\nrm -rf\n```",
    "**important**",
    "| a | b |",
    "\0",
    "١. أرسل",
]


@rows("text", NOTHING, ids=repr)
def test_nothing_to_do(text):
    """This asks for nothing, so no model is called."""
    assert not has_work(text)


@rows("text", WORK, ids=repr)
def test_something_to_do(text):
    """This may ask for something, so a model looks at it."""
    assert has_work(text)


@rows("nothing", [text for text in NOTHING if "[x]" not in text], ids=repr)
def test_nothing_before_it_hides_work(nothing):
    """Whatever empty things stand before it, the work is seen."""
    assert [work for work in WORK if not has_work(f"{nothing}\n\n{work}")] == []


@given(st.text())
def test_any_text_has_an_answer(text):
    """No text breaks it, and adding an open item always makes work of it, unless a comment is open."""
    assert has_work(text) in (True, False)
    assert has_work(f"{text.replace('<!--', '')}\n- [ ] call mum")


@rows("piece", ["- " * 3, "<!--", "<!-- -->", "\t", "[ ] ", "> ", "= \t", "1" * 9])
def test_a_megabyte_of_anything_is_read_at_once(piece):
    """No pattern becomes slow on a long line; a quadratic one would need minutes here."""
    has_work(piece * (1_000_000 // len(piece)))
    has_work(piece * (1_000_000 // len(piece)) + "x")
