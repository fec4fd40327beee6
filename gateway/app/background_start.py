"""
Composition root: background jobs, and the tools for whoever may start them. `gateway.app.proactive` and
`gateway.app.turns` call it, and only they.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from agent_core.errors import ToolError
from agent_core.models import Session
from agent_core.ports import ToolPort
from agent_core.tools.background_tools import (
    JobOutputTool,
    JobsTool,
    RunInBackgroundTool,
    StartJobTool,
    StopJobTool,
)
from agent_core.tools.policy import is_available
from gateway.app.agent import AgentParts
from gateway.app.environment import Environment
from gateway.app.shell_tools import Shell
from gateway.operations.background_operations import open_background_jobs
from gateway.proactive.background_jobs import BackgroundJobs, SessionBackgroundJobs
from gateway.proactive.jobs.job_service import JobPlace
from gateway.store.background_job_rows import Order
from gateway.store.stores import Queue
from gateway.turns.background_job_turn import CommandEnd, CommandRunner, CommandsNotReady

_CHANGED = (
    "It was not run: files in the workspace have changed since its approval. It can be asked for again."
)


class ToolFactory(Protocol):
    """Makes the tools of one run."""

    def __call__(self, session: Session, place: JobPlace, *, by_heartbeat: bool) -> list[ToolPort]:
        """Return the tools for jobs of one run, empty for people who may have none."""


@dataclass(frozen=True, slots=True)
class BackgroundParts:
    """Keeps background jobs, and makes their tools for one run."""

    jobs: BackgroundJobs
    tools: ToolFactory


def build_background(env: Environment, queue: Queue, agent: AgentParts) -> BackgroundParts:
    """Build what background jobs need."""
    workspace = env.home.path(env.settings.agents.workspace)
    jobs = open_background_jobs(queue, agent.memory, workspace, env.clock)
    allow = env.settings.tools.jobs.allow
    places = env.settings.gateway.max_concurrent_turns

    def tools(session: Session, place: JobPlace, *, by_heartbeat: bool) -> list[ToolPort]:
        # One place of all is people's.
        if places < 2 or not is_available(allow, session):
            return []
        mine = SessionBackgroundJobs(jobs, place, turn=session.turn, by_heartbeat=by_heartbeat)
        shell = agent.shell.tools(session)
        commands = [RunInBackgroundTool(mine, shell[0].review)] if shell else []
        return [StartJobTool(mine), *commands, JobsTool(mine), JobOutputTool(mine), StopJobTool(mine)]

    return BackgroundParts(jobs, tools)


def command_runner(shell: Shell, seconds: float) -> CommandRunner:
    """Run the commands of background jobs, each with a time limit."""

    async def prepare(
        session: Session, order: Order, command: str
    ) -> Callable[[], Awaitable[CommandEnd]] | CommandEnd | None:
        if not shell.will_be_available(session):
            return None
        tool = shell.tool(session, seconds=seconds)
        if tool is None:
            raise CommandsNotReady("the sandbox is not proved")
        if order.state and (await tool.basis(command)).state != order.state:
            return CommandEnd(_CHANGED, failed=True)
        from agent_core.tools.shell.shell_tool import script_for  # noqa: PLC0415 - rarely wanted

        async def run() -> CommandEnd:
            try:
                result = await tool.execute(command=script_for(command, order.id))
            except ToolError as error:
                return CommandEnd(str(error), failed=True)
            return CommandEnd(result.content, result.origins)

        return run

    return prepare
