"""The findings of `squidbot check`, as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from gateway.errors import ConfigInvalid, GatewayError


class FindingLevel(StrEnum):
    """The result of one check."""

    OK = "ok"
    WARNING = "warn"
    FAILED = "fail"
    SKIPPED = "skipped"
    """It was not looked at; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result about one part, and what to do about it."""

    part: str
    verdict: FindingLevel
    text: str
    what_to_do: str = ""


@dataclass(slots=True)
class CheckReport:
    """All findings in order; ``exit_code`` 0: none failed, 1: some did, 78: invalid configuration."""

    findings: list[Finding] = field(default_factory=list)
    exit_code: int = 0

    def add(self, finding: Finding) -> None:
        """Note a finding."""
        self.findings.append(finding)
        if finding.verdict is FindingLevel.FAILED and not self.exit_code:
            self.exit_code = 1

    def ok(self, part: str, text: str) -> None:
        """Note that a part works."""
        self.add(Finding(part, FindingLevel.OK, text))

    def skip(self, part: str, text: str) -> None:
        """Note that a part was not looked at, and why."""
        self.add(Finding(part, FindingLevel.SKIPPED, text))

    def warn(self, part: str, text: str, what_to_do: str = "") -> None:
        """Note a problem with which squidbot works."""
        self.add(Finding(part, FindingLevel.WARNING, text, what_to_do))

    def fail(self, part: str, error: GatewayError | str, what_to_do: str = "") -> None:
        """Note a failure."""
        if isinstance(error, ConfigInvalid):
            self.exit_code = error.exit_code
        self.add(Finding(part, FindingLevel.FAILED, str(error), what_to_do))

    def as_dict(self) -> dict[str, Any]:
        """
        The report as JSON can hold it; these keys stay.

        ``checks`` has, for each: ``name`` (of the part), ``state`` (ok, warn, fail, skipped), ``text`` and
        ``what_to_do`` (empty if there is nothing).
        """
        return {
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "checks": [
                {"name": one.part, "state": one.verdict.value, "text": one.text, "what_to_do": one.what_to_do}
                for one in self.findings
            ],
        }

    def as_text(self) -> str:
        """The report for a person."""
        lines = []
        for one in self.findings:
            first, *rest = one.text.splitlines() or [""]
            lines.append(f"{one.verdict.value:<8} {one.part}: {first}")
            lines += [f"         {line}" for line in rest]
            lines += [f"         what to do: {line}" for line in one.what_to_do.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class IntegrityFinding:
    """
    One defect of the stored data.

    ``part`` groups findings; ``serious``: damage. ``repair`` touches ``files`` and gets the folder for
    copies; None: only the person's ``remedy`` helps.
    """

    part: str
    text: str
    files: tuple[Path, ...] = ()
    repair: Callable[[Path], None] | None = None
    serious: bool = True
    remedy: str = ""
