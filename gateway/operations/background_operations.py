"""Operations on everybody's background jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agent_core.language import _
from agent_core.operation import InChat, Option, Who, operation
from agent_core.text import one_line
from gateway.errors import NotFound
from gateway.operations.operation_arguments import capped_limit
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text
from gateway.system.terminal_text import local_time, plain_line, quote

if TYPE_CHECKING:
    from agent_core.memory_ports import MemoryPort
    from agent_core.ports import Clock
    from gateway.proactive.background_jobs import BackgroundJobs
    from gateway.store.background_job_rows import BackgroundJob
    from gateway.store.stores import Queue

JobId = Annotated[str, Option(help="The job, as `squidbot jobs list` shows it.")]
_SHOWN_CHARS = 100


def render_jobs(answer: Mapping[str, Any]) -> str:
    """``jobs list``."""
    return "\n".join(_job_lines(row) for row in answer["jobs"]) or "there are no background jobs"


def render_job(answer: Mapping[str, Any]) -> str:
    """``jobs show``."""
    row = answer["job"]
    parts = [_job_lines(row), quote(row["text"]), quote(answer["output"])]
    return "\n\n".join(part for part in parts if part.strip())


def _job_lines(row: Mapping[str, Any]) -> str:
    short = one_line(plain_line(row["name"] or row["text"] or ""), _SHOWN_CHARS)
    kind = "command" if row["command"] else "task"
    return (
        f"{row['id']}  {kind:<7}  {plain_line(row['state_text'])}; started {local_time(row['started_at'])}\n"
        f"        {plain_line(row['person'])} in {plain_line(row['session'])}"
        + (f": {short}" if short else "")
    )


@operation(
    "jobs list",
    writes=False,
    render=render_jobs,
    chats=[InChat("jobs", Who.PERSON, chat_text.jobs_text)],
)
async def list_background_jobs(
    context: OperationContext,
    *,
    open_only: Annotated[bool, Option("--open", "Only those that have not ended.")] = False,
    limit: int = 50,
) -> dict[str, Any]:
    """
    List everybody's background jobs, newest first.

    Args:
        limit: Maximum number of jobs.
    """
    found = [job for job in await _visible(context) if job.open or not open_only]
    may_show = context.access.may_show
    return {
        "jobs": [
            await _shown(context, job, words=bool(context.caller) or may_show(job.session, job.person))
            for job in found[: capped_limit(limit)]
        ]
    }


@operation(
    "jobs show",
    writes=False,
    render=render_job,
    chats=[InChat("jobs show ID", Who.PERSON, chat_text.job_text)],
)
async def show_background_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Show a background job, and what it has said."""
    job = await _one(context, id)
    text, _ = await _jobs(context).output(job)
    return {"job": await _shown(context, job), "output": text}


@operation(
    "jobs stop",
    writes=True,
    render=lambda one: f"{one['id']} {'is stopped' if one['changed'] else 'had ended before'}",
    done="Stopped.",
    chats=[InChat("jobs stop ID", Who.PERSON, chat_text.stop_text)],
)
async def stop_background_job(context: OperationContext, id: JobId) -> dict[str, Any]:
    """Stop a background job; it sends nothing more."""
    job = await _one(context, id)
    return {"id": job.id, "changed": await _jobs(context).stop(job)}


async def _one(context: OperationContext, wanted: str) -> BackgroundJob:
    name = wanted.strip().lower()
    for job in await _visible(context):
        if job.id == name:
            return job
    if context.caller is not None:
        raise NotFound(_("there is no background job `{name}` of yours here", name=one_line(name, 40)))
    raise NotFound(f"there is no background job {wanted!r}; `squidbot jobs list` lists the jobs")


async def _visible(context: OperationContext) -> list[BackgroundJob]:
    """All jobs, or in a conversation those of the caller that may be shown there."""
    if context.caller is not None:
        return await _jobs(context).jobs_at(context.caller.place)
    return await _jobs(context).all(limit=1000)


async def _shown(context: OperationContext, job: BackgroundJob, *, words: bool = True) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": job.state.value,
        "state_text": await _jobs(context).state_text(job),
        "command": job.command,
        "name": job.name if words else None,
        "text": job.text if words else None,
        "person": job.person,
        "session": str(job.session),
        "own_session": str(job.own),
        "started_at": job.created_at.isoformat(),
    }


def _jobs(context: OperationContext) -> BackgroundJobs:
    if context.background is None:
        raise NotFound(_("there are no background jobs here"))
    return context.background


def open_background_jobs(store: Queue, memory: MemoryPort, workspace: Path, clock: Clock) -> BackgroundJobs:
    """The background jobs of a home, with or without a daemon."""
    from gateway.proactive.background_jobs import BackgroundJobs, answer_of

    def output_of(job_id: str) -> str:
        from agent_core.tools.shell.shell_tool import output_of

        return output_of(workspace / "work", job_id)

    return BackgroundJobs(
        store,
        lambda name: store.jobs.ledger(name=name, limit=1),
        said=answer_of(memory, store.journal, output_of),
        clock=clock,
    )
