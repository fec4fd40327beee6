"""What ``check`` says of the MCP servers of a running daemon."""

from __future__ import annotations

from gateway.cli.check.all_checks import _report_mcp
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.operations.render import _mcp, mcp_text


def test_trouble_and_changes_are_said_and_what_is_fine_is_fine():
    found = {
        "good": {"trouble": "", "changed": [], "state": "running", "tools": 2},
        "lost": {"trouble": "it ended with exit status 3", "changed": [], "state": "x", "tools": 0},
        "odd": {"trouble": "", "changed": ["echo"], "state": "not needed now", "tools": 1},
        "new": {"trouble": "", "changed": ["a", "b"], "state": "not needed now", "tools": 0},
        "part": {"trouble": "", "changed": [], "state": "x", "tools": 1, "left_out": ["tool 2: no name"]},
    }
    report = CheckReport()
    _report_mcp(report, found)
    said = [(each.part, each.verdict) for each in report.findings]
    assert said == [
        ("mcp good", FindingLevel.OK),
        ("mcp lost", FindingLevel.WARNING),
        ("mcp odd", FindingLevel.OK),
        ("mcp odd", FindingLevel.WARNING),
        ("mcp new", FindingLevel.OK),
        ("mcp new", FindingLevel.WARNING),
        ("mcp part", FindingLevel.OK),
        ("mcp part", FindingLevel.WARNING),
    ]
    assert "running, 2 tools" in report.as_text()
    assert "not needed now, 1 tool\n" in report.as_text()
    assert "1 tool is off until you approve it" in report.as_text()
    assert "2 tools are off until you approve them" in report.as_text()
    assert "0 tools" not in report.as_text()
    assert "cannot be used: tool 2: no name" in report.as_text()
    assert "it ended with exit status 3" in report.as_text()
    assert _mcp(found) == [
        "mcp        lost: it ended with exit status 3",
        "mcp        odd: 1 to review (squidbot mcp tools odd)",
        "mcp        new: 2 to review (squidbot mcp tools new)",
    ]


def test_the_list_names_what_cannot_be_used():
    one = {
        "name": "odd",
        "kind": "/bin/odd\x1b",
        "allow": "owner",
        "tools": 1,
        "changed": ["echo"],
        "state": "running",
    }
    told = mcp_text.servers(
        {"servers": [{**one, "left_out": ["tool 2: no\x07 name"]}, {**one, "name": "good", "left_out": []}]}
    )
    assert "odd, not used: tool 2: no" in told
    assert "good, not used" not in told
