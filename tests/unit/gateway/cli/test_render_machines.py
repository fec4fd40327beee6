"""What `squidbot status` shows of the machines of a home."""

from __future__ import annotations

from gateway.operations.render import _machines


def machine(does: str, *, up_s: int = 7200, seen_s: int = 3, here: bool = False) -> dict[str, object]:
    return {
        "process": f"process 7 on {does}", "here": here, "does": does,
        "version": "1.0", "up_s": up_s, "seen_s": seen_s,
    }  # fmt: skip


def test_active_standing_by_and_missing():
    machines = [machine("active", here=True), machine("standing by"), machine("missing", seen_s=300)]
    assert _machines({"machines": machines}) == [
        "machines of this home:",
        "  process 7 on active (this one): active for 2 h 0 min, version 1.0",
        "  process 7 on standing by: standing by for 2 h 0 min, version 1.0",
        "  process 7 on missing: MISSING for 5 min 0 s, version 1.0",
    ]


def test_nobody_is_active():
    assert _machines({"machines": [machine("standing by")]})[-1] == "NO MACHINE IS ACTIVE"
    assert _machines({"machines": []}) == ["NO MACHINE IS ACTIVE"]
    assert _machines({}) == []  # an embedded home
