"""
The tools for background jobs: a task for a copy of the model, or a command. The caller decides whose jobs
they are and which conversation gets their answer, as for ``schedule``: no argument of a model chooses another
person or another room. The jobs themselves are behind `BackgroundJobsPort`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from agent_core.errors import ToolRetry
from agent_core.models import ToolResult, tool_parameters
from agent_core.provenance import Origins, origins_of_call
from agent_core.tools.effects import Effect, Review, approved_state
from agent_core.tools.execution import step_of_call


class BackgroundJobsPort(Protocol):
    """
    One person's background jobs, seen from one conversation.

    Methods return a text for the model, and raise `ToolError` with one.
    """

    async def start(
        self, text: str, *, name: str, command: bool, step: int, origins: Origins, state: str = ""
    ) -> tuple[str, str]:
        """
        Start a job, once for the same text and step of the turn. Its id follows the text.

        ``origins`` are whose words it is made of. A command is run only while the files that it is based on
        have this ``state``; empty: whatever they hold.
        """
        ...

    async def list_text(self) -> tuple[str, Origins]:
        """The jobs, one per line, and the origins of their words."""
        ...

    async def output(self, job_id: str) -> tuple[str, Origins]:
        """The output of a job so far, and the origins of its words."""
        ...

    async def stop(self, job_id: str) -> str:
        """End a job."""
        ...


class _Tool:
    deferred = True

    def __init__(self, jobs: BackgroundJobsPort) -> None:
        self._jobs = jobs


class StartJobTool(_Tool):
    """The tool ``start_job`` of one run."""

    name = "start_job"
    description = (
        "Run a longer task in the background while this conversation continues. A copy of you does it "
        "with your tools but sees nothing of this conversation: put everything that it needs into goal. "
        "Its answer is sent here automatically, once; do not wait for it."
    )
    parameters = tool_parameters(
        "goal",
        goal={"type": "string", "description": "The whole task"},
        name={"type": "string", "description": "A few words that people will see"},
    )
    effect = Effect.PERSIST
    repeatable = True

    async def execute(self, **arguments: Any) -> ToolResult:
        """Start the job."""
        goal = _text(arguments, "goal", 20_000)
        return _started(
            *await self._jobs.start(
                goal, name=_name(arguments), command=False, step=step_of_call(), origins=origins_of_call()
            )
        )


class RunInBackgroundTool(_Tool):
    """The tool ``run_in_background`` of one run, where there is a shell."""

    name = "run_in_background"
    description = (
        "Run a shell command (/bin/sh -c) in the background, in the same sandbox as `shell`, for longer "
        "than that allows. Its result is sent here automatically, once; job_output shows its output so "
        "far. A restart ends it."
    )
    parameters = tool_parameters(
        "command",
        command="string",
        name={"type": "string", "description": "A few words that people will see"},
    )
    effect = Effect.EXECUTE
    repeatable = True

    def __init__(self, jobs: BackgroundJobsPort, review: Callable[..., Awaitable[Review]]) -> None:
        super().__init__(jobs)
        self.review = review

    async def execute(self, **arguments: Any) -> ToolResult:
        """Start the command."""
        command = _text(arguments, "command", 60_000)
        if "\0" in command or command != command.encode("utf-8", "replace").decode():
            raise ToolRetry("The command contains characters that no command can contain.")
        return _started(
            *await self._jobs.start(
                command,
                name=_name(arguments),
                command=True,
                step=step_of_call(),
                origins=origins_of_call(),
                state=approved_state(),
            )
        )


class JobsTool(_Tool):
    """The tool ``jobs`` of one run."""

    name = "jobs"
    description = "List the background jobs of this person with their ids and progress."
    parameters = tool_parameters()
    effect = Effect.PRIVATE_READ
    repeatable = True

    async def execute(self, **_: Any) -> ToolResult:
        """List the jobs."""
        text, origins = await self._jobs.list_text()
        return ToolResult(content=text, origins=origins)


class JobOutputTool(_Tool):
    """The tool ``job_output`` of one run."""

    name = "job_output"
    description = "Show the answer of a background job, or the output of its command so far."
    parameters = tool_parameters("id", id="string")
    effect = Effect.PRIVATE_READ
    repeatable = True

    async def execute(self, **arguments: Any) -> ToolResult:
        """Show the output."""
        text, origins = await self._jobs.output(str(arguments["id"]))
        return ToolResult(content=text, origins=origins)


class StopJobTool(_Tool):
    """The tool ``stop_job`` of one run."""

    name = "stop_job"
    description = "Stop a background job; nothing more of it is sent."
    parameters = tool_parameters("id", id="string")
    effect = Effect.PERSIST
    repeatable = True

    async def execute(self, **arguments: Any) -> ToolResult:
        """Stop the job."""
        return ToolResult(content=await self._jobs.stop(str(arguments["id"])))


def _started(said: str, job_id: str) -> ToolResult:
    return ToolResult(content=said, undo=f"squidbot jobs stop {job_id}")


def _text(arguments: Mapping[str, Any], name: str, most: int) -> str:
    text = str(arguments.get(name) or "").strip()
    if not text:
        raise ToolRetry(f"'{name}' is empty.")
    if len(text.encode("utf-8", "surrogatepass")) > most:
        raise ToolRetry(f"'{name}' is longer than {most} bytes; put data into a file.")
    return text


def _name(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("name") or "").strip()[:60]
