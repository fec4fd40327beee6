"""The commands ``squidbot heartbeat …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask, tell

__all__ = ["heartbeat"]

heartbeat = App(
    name="heartbeat",
    help="The regular check-ins: what they did, and one right now.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@heartbeat.command(name="log")
def heartbeat_log(*, limit: int = 30, jobs: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show when check-ins have run or were left out, why, what they cost and whether anything was said.

    Args:
        limit: So many lines.
        jobs: Show the runs of jobs as well.
    """
    from gateway.cli.render import schedule

    answer = ask(where, "heartbeat_log", limit=limit, jobs=jobs or None)
    tell(as_json, answer, schedule.ledger(answer))
    return 0


@heartbeat.command(name="now")
def heartbeat_now(*, dry_run: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Check in now, at any hour, and tell what came of it.

    Args:
        dry_run: Only show what would be asked, and why; no model is called and nothing is sent.
    """
    from gateway.cli.render import schedule

    answer = ask(where, "heartbeat_now", dry_run=dry_run or None)
    tell(as_json, answer, schedule.tick(answer))
    return 1 if answer["outcome"] == "failed" else 0
