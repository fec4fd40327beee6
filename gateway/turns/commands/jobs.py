"""``!jobs``: lists somebody's background jobs, shows what one has said, and stops one."""

from __future__ import annotations

from gateway.proactive.background_jobs import BackgroundJobs
from gateway.proactive.jobs.service import JobPlace
from gateway.turns.approvals.text import safe_line

_USE = "Write `!jobs`, `!jobs show ID` or `!jobs stop ID`. Nothing was done."


async def about_jobs(jobs: BackgroundJobs, place: JobPlace, argument: str) -> str:
    """The answer to the command in a conversation. Raises `StoreUnavailable` or `StorageUnavailable`."""
    what, _, wanted = argument.strip().partition(" ")
    mine = await jobs.jobs_at(place)
    if not what:
        if not mine:
            return "You have no running background job here, and none has ended in the last week."
        return "\n".join(
            ["Your background jobs, newest first:", "", *[f"- {await jobs.summary(job)}" for job in mine]]
        )
    if what.lower() not in ("show", "stop") or not wanted.strip():
        return _USE
    name = wanted.strip().strip("`").lower()
    job = next((job for job in mine if job.id == name), None)
    if job is None:
        return f"There is no background job `{safe_line(name)[:40]}` of yours here."
    if what.lower() == "show":
        text, _ = await jobs.output(job)
        return f"{await jobs.summary(job)}\n\n{text}"
    return f"`{job.id}` is stopped." if await jobs.stop(job) else f"`{job.id}` had ended before."
