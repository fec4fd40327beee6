"""Text: windows, replacements, differences."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from agent_core.tools.files.file_reading import diff_text, replace_text, reviewed_change, window

LINES = st.lists(st.text(alphabet="ab \t", max_size=5), max_size=30)


def _window(content, offset=1, limit=2000):
    return window(io.BytesIO(content), offset=offset, limit=limit, max_chars=10_000, max_bytes=1_000_000)


@given(LINES, st.integers(1, 40), st.integers(1, 40))
def test_windows_together_are_the_file(lines, offset, limit):
    """Going on where one ends shows every line once, with its number."""
    content = "\n".join(lines).encode()
    expected = content.decode().splitlines()[offset - 1 :]
    shown, at = [], offset
    while True:
        part = _window(content, at, limit)
        shown += part.text.split("\n") if part.text else []
        if not part.following:
            break
        assert part.following == part.last + 1
        at = part.following
    assert [line.partition("\t")[2] for line in shown] == expected
    assert [int(line.partition("\t")[0]) for line in shown] == list(range(offset, offset + len(expected)))


@given(LINES, LINES)
def test_a_difference_can_be_applied(before, after):
    """Taking its lines away and adding its lines to the old text gives the new one."""
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    told = diff_text(old.encode(), new.encode(), "f")
    if old == new:
        assert told == "f: no change"
        return
    result, at, source = [], 0, old.splitlines()
    for line in told.split("\n")[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1][1:].split(",")[0])
            count = line.split()[1].partition(",")[2]
            start -= 0 if count == "0" else 1
            result += source[at:start]
            at = start
        elif line.startswith("+"):
            result.append(line[1:])
        elif line.startswith("-"):
            assert source[at] == line[1:]
            at += 1
        else:
            assert source[at] == line[1:]
            result.append(source[at])
            at += 1
    assert result + source[at:] == new.splitlines()


def test_a_difference_of_large_texts_takes_no_time_to_speak_of():
    """Two files of the same few lines in another order: the whole is shown as replaced, at once."""
    old = "".join(f"{number % 7}\n" for number in range(100_000)).encode()
    new = "".join(f"{number % 5}\n" for number in range(100_000)).encode()

    told = diff_text(old, new, "f")
    assert told.count("\n-") > 90_000
    near = diff_text(old, old + b"end\n", "f")
    assert near == "--- f\n+++ f\n@@ -99998,3 +99998,4 @@\n 2\n 3\n 4\n+end"


@given(st.text(max_size=50), st.text(min_size=1, max_size=3), st.text(max_size=5))
def test_a_replacement_is_the_plain_one(text, old, new):
    """For text with plain line endings, every match is replaced and nothing else."""
    if old in text and "\r" not in text + old + new and not text.startswith("\ufeff"):
        done = replace_text(text.encode(), old, new, everywhere=True, shown="f")
        assert done == text.replace(old, new).encode()


def test_a_change_that_is_no_text_is_reviewed_whole():
    """Nobody approves a size: what a diff would only measure is shown."""
    assert "Pay Mallory" not in diff_text(b"old", b"%PDF-\0Pay Mallory", "a")  # the control
    assert "Pay Mallory" in reviewed_change(b"old", b"%PDF-\0Pay Mallory", "a")
    assert "Pay Mallory" in reviewed_change(None, b"%PDF-\0Pay Mallory", "a\nb.pdf")
    assert reviewed_change(b"old\n", b"new\n", "a") == "a, changed:\n-old\n+new"


def test_a_review_needs_no_knowledge_of_diffs():
    """New and deleted files are shown line by line, far lines by their number, and no line is lost."""
    far = b"".join(b"%d\n" % number for number in range(30))
    assert reviewed_change(None, b"@@ -1 +1 @@\n\\ x", "a") == "a, a new file:\n+@@ -1 +1 @@\n+\\ x"
    assert reviewed_change(b"milk\n", None, "a") == "a, deleted:\n-milk"
    told = reviewed_change(far, far.replace(b"20\n", b"20"), "a").split("\n")
    assert told[:2] == ["a, changed:", "line 18:"] and "+2021" in told
    assert reviewed_change(b"x", b"x\n", "a") == "a, changed:\n-x\n(without a line break at its end)\n+x"
    assert reviewed_change(b"x\nold", b"x\nnew", "a") == "a, changed:\n x\n-old\n+new"
    assert reviewed_change(b"", b"- tea\n", "MEMORY.md") == "MEMORY.md, changed:\n+- tea"
    assert reviewed_change(None, b"", "a") == "a, a new file:\n(empty)"


def test_a_table_of_an_old_program_is_read_as_people_see_it():
    """A file in the encoding of Windows, as Excel writes it: read, compared and reviewed with its letters."""
    table = "Name;Stück\nÄpfel;3\n".encode("cp1252")
    assert _window(table).text == "1\tName;Stück\n2\tÄpfel;3"
    assert "+Äpfel;3" in diff_text(None, table, "table.csv")
    assert "+Äpfel;3" in reviewed_change(None, table, "table.csv")


def test_utf_8_with_a_broken_character_stays_that():
    """The control: one byte that is wrong does not make a foreign text of all others."""
    assert _window("äöü ".encode() + b"\xff").text == "1\täöü \ufffd"
