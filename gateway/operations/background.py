"""Operations on everybody's background jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_core.memory_ports import MemoryPort
from agent_core.ports import Clock
from gateway.errors import NotFound
from gateway.operations.arguments import within
from gateway.proactive.background_jobs import BackgroundJobs, answer_of
from gateway.queue.background import BackgroundJob
from gateway.queue.stores import Queue
from gateway.routing.access import Access

JOB_OPERATIONS = frozenset({"jobs_list", "jobs_show", "jobs_stop"})
_LOOKED_AT = 1000


class BackgroundOperations:
    """The part of `gateway.operations.service.Operations` about background jobs."""

    _background: BackgroundJobs | None
    _access: Access

    async def jobs_list(self, limit: int = 50, open_only: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """List background jobs, newest first, with the owner's words only; ``open_only``: not ended."""
        found = [job for job in await self._jobs().all(limit=_LOOKED_AT) if job.open or not open_only]
        may_show = self._access.may_show
        return {
            "jobs": [
                await self._shown(job, words=may_show(job.session, job.person))
                for job in found[: within(limit)]
            ]
        }

    async def jobs_show(self, id: str) -> dict[str, Any]:  # noqa: A002 - the name of the argument
        """One background job, and what it has said."""
        job = await self._one(id)
        text, _ = await self._jobs().output(job)
        return {"job": await self._shown(job), "output": text}

    async def jobs_stop(self, id: str) -> dict[str, Any]:  # noqa: A002
        """End a background job; it sends nothing more."""
        job = await self._one(id)
        return {"id": job.id, "changed": await self._jobs().stop(job)}

    async def _one(self, wanted: str) -> BackgroundJob:
        name = wanted.strip().lower()
        for job in await self._jobs().all(limit=_LOOKED_AT):
            if job.id == name:
                return job
        raise NotFound(f"there is no background job {wanted!r}; `squidbot jobs list` lists the jobs")

    async def _shown(self, job: BackgroundJob, *, words: bool = True) -> dict[str, Any]:
        return {
            "id": job.id,
            "state": job.state.value,
            "state_text": await self._jobs().state_text(job),
            "command": job.command,
            "name": job.name if words else None,
            "text": job.text if words else None,
            "person": job.person,
            "session": str(job.session),
            "own_session": str(job.own),
            "started_at": job.created_at.isoformat(),
        }

    def _jobs(self) -> BackgroundJobs:
        if self._background is None:
            raise NotFound("there are no background jobs here")
        return self._background


def open_background_jobs(store: Queue, memory: MemoryPort, workspace: Path, clock: Clock) -> BackgroundJobs:
    """The background jobs of a home, with or without a daemon."""

    def output_of(job_id: str) -> str:
        from agent_core.tools.shell.background import output_of  # noqa: PLC0415 - rarely wanted

        return output_of(workspace / "work", job_id)

    return BackgroundJobs(
        store,
        lambda name: store.jobs.ledger(name=name, limit=1),
        said=answer_of(memory, store.journal, output_of),
        clock=clock,
    )
