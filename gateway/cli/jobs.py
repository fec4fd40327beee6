"""The commands ``squidbot jobs …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

jobs = App(
    name="jobs",
    help="Background jobs: list, show, stop. Scheduled jobs are `squidbot cron`.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
_Id = Annotated[str, Parameter(help="The job, as `squidbot jobs list` shows it.")]


@jobs.command(name="list")
def jobs_list(
    *,
    running: Annotated[bool, Parameter(name="--open", help="Only those that have not ended.")] = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 50,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    List everybody's background jobs, newest first.

    Args:
        limit: Maximum number of jobs.
    """
    from gateway.cli.render import background

    answer = ask(where, "jobs_list", limit=limit, open_only=running or None)
    print_result(as_json, answer, background.jobs(answer))
    return 0


@jobs.command(name="show")
def jobs_show(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Show a background job, and what it has said."""
    from gateway.cli.render import background

    answer = ask(where, "jobs_show", id=job_id)
    print_result(as_json, answer, background.render_job(answer))
    return 0


@jobs.command(name="stop")
def jobs_stop(job_id: _Id, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Stop a background job; it sends nothing more."""
    answer = ask(where, "jobs_stop", id=job_id)
    told = "is stopped" if answer["changed"] else "had ended before"
    print_result(as_json, answer, f"{answer['id']} {told}")
    return 0
