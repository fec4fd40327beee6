"""What must survive a summary is recognised by its form, and found again in other words."""

from __future__ import annotations

import time

from agent_core.memory.consolidation.key_facts import (
    KeyFact,
    essentials,
    excerpts,
    join_list,
    merge_list,
    missing,
    split_list,
)
from tests.rows import rows


def kinds(*texts: str) -> set[tuple[str, str]]:
    return {(item.kind, item.text) for item in essentials(texts)}


@rows(
    ("text", "found"),
    [
        ("see https://example.org/a?b=1.", ("address", "https://example.org/a?b=1")),
        ("write to bob@mail.test, please", ("address", "bob@mail.test")),
        ("ask @alice:hs.test about it", ("address", "@alice:hs.test")),
        ("we meet on 14 May", ("date", "14 May")),
        ("it ends on 2026-03-01", ("date", "2026-03-01")),
        ("due 3.4.2026 at noon", ("date", "3.4.2026")),
        ("on March 3rd we fly", ("date", "March 3rd")),
        ("the fee is €1,250", ("number", "€1,250")),
        ("the code is 48213", ("number", "48213")),
        ("come at 14:30", ("number", "14:30")),
        ("it rose by 12.5% again", ("number", "12.5%")),
        ("my cat is called Tom", ("name", "Tom")),
        ("then Ms Reis called", ("name", "Ms Reis")),
        ("the project `ripdb` goes on", ("name", "ripdb")),
        ("We decided not to use Redis.", ("decision", "We decided not to use Redis.")),
        ("he said “never touch the blue valve”", ("quote", "never touch the blue valve")),
    ],
)
def test_what_is_essential(text: str, found: tuple[str, str]) -> None:
    """Addresses, dates, numbers, names, decisions and quotations."""
    assert found in kinds(text)


def test_what_is_not() -> None:
    """Single digits, the first word of a sentence, small talk, and numbers that only count on."""
    assert kinds("I have 3 cats.", "Hello there. Thanks! Ok.", "See you.") == set()
    assert kinds(*[f"message {number}" for number in range(10, 100)]) == set()
    assert ("number", "48213") in kinds(
        "the code is 48213", *[f"message {number}" for number in range(10, 100)]
    )


LONG_CODE = "`remind me in 2 minutes to turn off the oven`, `remind me tomorrow`, `!!`, `ripdb`"


def test_code_is_what_stands_between_its_own_marks() -> None:
    """What is between two pieces of code is none, however long they are, and marks alone are no name."""
    names = {text for kind, text in kinds(LONG_CODE) if kind == "name"}
    assert names == {"remind me tomorrow", "ripdb"}


@rows("text", [",", "!?", "", "…"])
def test_an_item_without_a_word_is_looked_for_all_the_same(text: str) -> None:
    """Whatever was taken for essential, the check ends with an answer."""
    item = KeyFact("name", text, text)
    assert missing([item], f"so {text} it is") == []
    assert missing([item], "nothing of it") == ([item] if text else [])


def test_a_language_that_writes_nouns_with_capitals() -> None:
    """Single nouns are no names there; names of two words are."""
    found = kinds(
        "Ich habe gestern das Auto in die Garage gefahren und mit Anna Weber über den Vertrag gesprochen."
    )
    assert found == {("name", "Anna Weber")}


@rows(
    ("text", "summary", "survives"),
    [
        ("the code is 48213", "Her code: 48213.", True),
        ("the code is 48213", "Her code: 482134.", False),
        ("the fee is €1,250", "The fee of 1250 euros was agreed.", True),
        ("we meet on 14 May", "A meeting on 2026-05-14.", True),
        ("we meet on 14 May", "A meeting on May 14th.", True),
        ("we meet on 14 May", "A meeting on 15 May.", False),
        ("then Ms Reis called", "reis called", True),
        ("then Ms Reis called", "someone called", False),
        (
            "We decided not to use Redis because of its licence",
            "They decided that Redis, for its licence, was out.",
            True,
        ),
        ("We decided not to use Redis because of its licence", "They talked.", False),
        ("see https://example.org/a", "the page https://example.org/a", True),
        ("see https://example.org/a", "the page example.org", False),
    ],
)
def test_what_survives(text: str, summary: str, survives: bool) -> None:
    """Meaning counts where it is cheap: dates and numbers in other forms, decisions in other words."""
    first = essentials([text])[0]
    assert (missing([first], summary) == []) == survives


def test_a_snippet_says_what_it_means() -> None:
    """A bare number is of no use to anybody."""
    (item,) = essentials(
        [
            "and after a long walk through the hills we found that the locker code of Rita's bicycle was 48213 as ever before"
        ]
    )[:1]
    assert "locker code" in item.snippet and "48213" in item.snippet and len(item.snippet) <= 100


def test_the_list_at_the_end_of_a_summary() -> None:
    """It can be put together, taken apart, merged and limited; without entries the summary is as it was."""
    assert join_list("Prose.", []) == "Prose."
    assert join_list("", ["a"]) == "Also mentioned: a."
    whole = join_list("Prose.\n\nMore.", ["one", "two"])
    assert split_list(whole) == ("Prose.\n\nMore.", ["one", "two"])
    assert split_list("Prose. Also mentioned: no list.") == ("Prose. Also mentioned: no list.", [])
    assert split_list("Also mentioned: a; b.\n\nand on") == ("Also mentioned: a; b.\n\nand on", [])
    new = essentials(["the code is 48213; the fee 700"])
    assert merge_list(["one", "the code is 48213"], new, "Prose with one.", max_chars=1000) == [
        "the code is 48213, the fee 700"
    ]
    assert merge_list([f"entry {number}" for number in range(100)], [], "", max_chars=39) == [
        "entry 97",
        "entry 98",
        "entry 99",
    ]


def test_excerpts_are_short() -> None:
    """Only the sentences in which something stands, each once, within the limit."""
    texts = ["Hello. The code is 48213. Bye.", "nothing", "on 14 May with Ms Reis"]
    items = essentials(texts)
    said = [("2026-05-03", text) for text in texts]
    assert excerpts(items, said, max_chars=1000) == "(2026-05-03)\nThe code is 48213.\non 14 May with Ms Reis"
    assert len(excerpts(items, [("", "48213 " + "x" * 5000)], max_chars=100)) <= 100


@rows(
    "text",
    [
        "a" * 500_000,
        "1" * 100_000,
        "." * 100_000 + "x",
        '"' * 100_000,
        "A " * 50_000,
        "1.1.1." * 20_000,
        "a@" * 50_000,
        "@a:" * 30_000,
        "12 may " * 20_000,
        "“a" * 50_000,
        "猫。" * 100_000,
        "5月" * 50_000,
        " 1." * 50_000,
    ],
    ids=range(13),
)
def test_hostile_texts_take_no_time(text: str) -> None:
    """Nobody can keep the check busy: its cost grows with the length of the text and no faster."""

    def cost_s(part: str) -> float:
        begun = time.process_time()
        missing(essentials([part]), part)
        return time.process_time() - begun

    quarter = text[: len(text) // 4]
    assert cost_s(text) < 10 * max(cost_s(quarter), cost_s(quarter), 0.05)


def test_a_quotation_mark_ends_an_address() -> None:
    """An address in quotation marks of any kind is the address without them: with one it would survive nowhere."""
    for text in (
        "see “https://example.org/x?y=1”",
        "siehe „https://example.org/x?y=1“",
        "«https://example.org/x?y=1»",
    ):
        addresses = [item.text for item in essentials([text]) if item.kind == "address"]
        assert addresses == ["https://example.org/x?y=1"]
