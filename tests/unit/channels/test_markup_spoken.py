"""What of an answer is read out."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.markup import REST, spoken_text

ANSWER = """# The plan
Hello **you**, see [the docs](https://example.org/very/long?x=y) or https://user:pw@www.example.com/a?b=c
- first
- second `word` 🎉

| a | b |
|---|---|
| 1 | 2 |

```py
password = "hunter2"
```

> quoted

![a picture](https://example.org/p.png)
"""


def test_markdown_becomes_sentences():
    """Titles of links and hosts of addresses are said; code, tables, pictures and signs are not."""
    said = spoken_text(ANSWER, max_chars=1000)
    assert said == "The plan. Hello you, see the docs or example.com. first. second word. quoted."


@pytest.mark.parametrize("silent", ["", "  \n", "```\nx\n```", "|a|b|\n|-|-|\n|1|2|", "---", "🎉", "![x](y)"])
def test_where_there_is_nothing_to_say_nothing_is_said(silent):
    """Code alone, a table alone, a sign alone."""
    assert spoken_text(silent, max_chars=100) == ""


def test_a_long_text_ends_with_where_the_rest_is():
    """It is cut at the end of a sentence, and between words where there is none."""
    said = spoken_text("One sentence. " * 100, max_chars=200)
    assert said.endswith(f"sentence. {REST}")
    assert len(said) <= 200
    said = spoken_text("word " * 100, max_chars=100)
    assert said.endswith(f"word … {REST}")
    exact = "a" * 99 + "."
    assert spoken_text(exact, max_chars=100) == exact


@pytest.mark.parametrize(
    "eyes", ["|a|b|\n|-|-|\n" + "|x|y|\n" * 40_000, "```\n" + "code\n" * 40_000 + "```\n", "**a" * 80_000]
)
def test_of_a_very_long_answer_the_beginning_is_looked_at(eyes):
    """The event loop waits while Markdown is interpreted, up to two seconds for an answer that is nothing but tables."""
    said = spoken_text(f"Here it is.\n\n{eyes}\n\nAfter that.", max_chars=1500)
    assert said.startswith("Here it is. ")
    assert said.endswith(REST)
    assert "After" not in said


@given(st.text(max_size=600), st.integers(60, 200))
def test_any_text_is_at_most_as_long_as_it_may_be(text, most):
    """Whatever a model writes."""
    said = spoken_text(text, max_chars=most)
    assert len(said) <= most
    assert "\n" not in said


def test_hostile_texts_take_linear_time():
    """Addresses and signs by the hundred thousand, which a pattern could trip over."""
    for hostile in ("https://" * 20_000, "http://a@" * 20_000, "http://" + "a" * 200_000, "🎉" * 50_000):
        began = time.process_time()
        spoken_text(hostile, max_chars=1500)
        assert time.process_time() - began < 5
