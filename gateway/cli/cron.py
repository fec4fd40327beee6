"""The commands ``squidbot cron …`` and ``squidbot heartbeat …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

cron = App(
    name="cron",
    help="Reminders and scheduled questions: list, add, remove, pause, resume, run.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)

_Id = Annotated[str, Parameter(help="The job, as `squidbot cron list` shows it.")]
heartbeat = App(
    name="heartbeat",
    help="Check-ins: show the log, or run one now.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@cron.command(name="list")
def cron_list(
    *,
    every: Annotated[bool, Parameter(name="--all", help="Include finished jobs.")] = False,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """List everybody's jobs, the next one first."""
    from gateway.cli.render import schedule

    answer = ask(where, "cron_list", every=every or None)
    print_result(as_json, answer, schedule.jobs(answer))
    return 0


@cron.command(name="add")
def cron_add(
    text: str,
    /,
    *,
    at: str = "",
    after: Annotated[str, Parameter(name="--in")] = "",
    every: str = "",
    cron: str = "",
    hook: str = "",
    zone: str = "",
    question: Annotated[bool, Parameter(name="--ask")] = False,
    session: str | None = None,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Add a job; give one of --at, --in, --every, --cron and --hook.

    Args:
        text: The text to send, or with --ask the question for the model.
        at: A time: "2026-11-22 09:00", "7.30pm", "half past six", "friday", "every day 09:00 and 21:00".
        after: Once, after this time: 30m, 1h30, "half an hour", 1d.
        every: Repeatedly: 30m, 2h, "day 09:00", "2 weeks on monday 09:00".
        cron: Five fields, minute hour day month weekday: "0 9 * * 1-5".
        hook: Whenever this webhook of the configuration is called; what it says is added to the text.
        zone: The time zone, such as Europe/Berlin (default: as configured).
        question: Ask the model and send its answer instead of the text itself.
        session: The conversation (default: the owner's).
    """
    from gateway.cli.render import schedule

    answer = ask(
        where,
        "cron_add",
        text=text,
        at=at or None,
        after=after or None,
        every=every or None,
        cron=cron or None,
        hook=hook or None,
        zone=zone or None,
        ask=question or None,
        session=session,
    )
    print_result(as_json, answer, schedule.job(answer["job"]))
    return 0


@cron.command(name="remove")
def cron_remove(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Remove a job; a run in progress is not interrupted."""
    answer = ask(where, "cron_remove", id=job_id)
    print_result(as_json, answer, f"{answer['id']} is removed")
    return 0


@cron.command(name="pause")
def cron_pause(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Pause a job."""
    from gateway.cli.render import schedule

    answer = ask(where, "cron_pause", id=job_id)
    print_result(as_json, answer, schedule.job(answer["job"]))
    return 0


@cron.command(name="resume")
def cron_resume(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Resume a paused job; runs that fell due during the pause are skipped."""
    from gateway.cli.render import schedule

    answer = ask(where, "cron_resume", id=job_id)
    print_result(as_json, answer, schedule.job(answer["job"]))
    return 0


@cron.command(name="run")
def cron_run(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Run a job now, in addition to its schedule."""
    answer = ask(where, "cron_run", id=job_id)
    when = "runs now" if answer["running"] else "runs at the next start of squidbot"
    print_result(as_json, answer, f"{answer['id']} {when}")
    return 0


@heartbeat.command(name="log")
def heartbeat_log(*, limit: int = 30, jobs: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show when check-ins ran or were skipped, why, their cost, and whether they sent anything.

    Args:
        limit: Maximum number of lines.
        jobs: Include job runs.
    """
    from gateway.cli.render import schedule

    answer = ask(where, "heartbeat_log", limit=limit, jobs=jobs or None)
    print_result(as_json, answer, schedule.ledger(answer))
    return 0


@heartbeat.command(name="now")
def heartbeat_now(*, dry_run: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Run a check-in now, at any hour, and show its result.

    Args:
        dry_run: Show what would be asked, and why; call no model and send nothing.
    """
    from gateway.cli.render import schedule

    answer = ask(where, "heartbeat_now", dry_run=dry_run or None)
    print_result(as_json, answer, schedule.tick(answer))
    return 1 if answer["outcome"] == "failed" else 0
