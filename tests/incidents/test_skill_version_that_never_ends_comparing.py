"""
A new version of an added skill was compared line by line however long it was, so that a file of a few
megabytes, each line in it a hundred times, held up `skills check` and `skills add` for hours.
"""

from __future__ import annotations

from gateway.operations.skill_operations import _MAX_COMPARED_LINES, _MAX_SCANNED_BYTES, _changes


def cross(lines: int, step: int) -> bytes:
    """Lines of which none is rare enough to begin with and none so frequent that it is passed over."""
    return b"".join(b"%d\n" % (number * step % (lines // 100)) for number in range(lines))


def test_sizes_stand_for_what_takes_too_long() -> None:
    """A file of megabytes, one with many lines, and many of them; a small change is shown as it is."""
    many = {f"{number:03}": cross(2000, 1) for number in range(400)}
    before = {
        **many,
        "SKILL.md": b"a\nb\n",
        "huge": cross(400_000, 1),
        "long": cross(20_000, 1),
        "same": b"x",
    }
    after = {name: content[::-1] for name, content in many.items()} | {
        "SKILL.md": b"a\nc\n",
        "huge": cross(400_000, 7),
        "long": cross(20_000, 7),
        "same": b"x",
    }
    assert max(map(len, before.values())) > _MAX_SCANNED_BYTES > len(before["long"])
    shown = _changes(before, after)
    assert "--- 000" in shown
    assert f"399: {len(many['399']):,} bytes become {len(many['399']):,}, not compared" in shown
    assert len(shown) < 2 * _MAX_COMPARED_LINES + 400
    few = _changes(
        {**before, **many}, {**before, "SKILL.md": b"a\nc\n", "new": b"n\n", "huge": after["huge"]}
    )
    assert few[:6] == ["--- SKILL.md", "+++ SKILL.md", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    assert few[6].startswith("huge: ") and few[6].endswith("not compared")
    assert few[7:] == ["--- /dev/null", "+++ new", "@@ -0,0 +1 @@", "+n"]
    gone = _changes({"long": before["long"]}, {"long": after["long"]})
    assert gone[:2] == ["--- long", "+++ long"] and len(gone) == 200
