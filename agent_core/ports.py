"""
The Protocols of what the agent needs from outside: models, tools, skills, files, a place to talk, a clock.
The comments are contracts; the contract suites in ``tests/contract`` hold every implementation to them. What
remembers is in `agent_core.memory_ports`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent_core.messages import Attachment
from agent_core.models import Message, ModelAnswer, ModelChunk, Skill, ToolCall, ToolDefinition, ToolResult
from agent_core.provenance import Origins


class Clock(Protocol):
    """The source of time, so that tests can use their own."""

    def now(self) -> datetime:
        """The wall clock: an aware UTC datetime. It may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for limits and ages."""
        ...


class LLMPort(Protocol):
    """
    A model, or an ordered pool of models that looks like one.

    ``chat`` returns an async iterator of chunks: pieces of text in order, then complete `ToolCall`s, then
    at most one `Usage`. The iterator must be closed (``aclose``) when it is left early; that ends the
    request. Errors are subclasses of `ModelError`, raised from ``chat`` or while iterating.
    With ``stream=False`` the text may come in one piece.
    """

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer to ``messages``."""
        ...


class AllowancePort(Protocol):
    """Limits what a run may spend, in addition to the run's own limits."""

    async def final_call_reason(self, tokens: int, *, begun: bool) -> str:
        """
        Return why the next model call must be the last of the run; empty if it need not be.

        Args:
            tokens: Estimated prompt tokens of the call.
            begun: The run has results to report: one more call is then always allowed so that it can answer.
                Otherwise a call that exceeds the allowance is refused when it is made.
        """
        ...


@runtime_checkable
class ToolPort(Protocol):
    """
    Something a model can do.

    ``execute`` gets the arguments as the model gave them, unchecked. It raises `ToolRetry` for arguments
    that do not fit and another `ToolError` for the rest; any other exception is a defect and is reported to
    the model as a failure without its text. It may be cancelled at every await.

    A tool may declare more:

    - ``effect`` or ``effect_of(arguments)``: what a call does, an `agent_core.tools.effects.Effect`. Without
      it a call counts as ``execute``.
    - ``targets(arguments)``: the recipients or addresses that a call reaches, or the command that it runs;
      none if it does not choose them. Without it nobody knows them.
    - ``makes_new(arguments)``: whether a call that writes makes what it names, and changes nothing that was
      there before this run. Without it no name lets it pass.
    - ``is_note(arguments)``: true if a call that lasts keeps words for the people of the conversation and
      nothing acts on them unasked.
    - ``async wording(arguments)``: the `agent_core.tools.effects.Wording` by which a call is the idea of
      whoever has written it; None if there is none.
    - ``async review(**arguments)``: what a person is shown before the call, an
      `agent_core.tools.effects.Review`.
    - ``needs_approval``, or ``guards(arguments)``: true if it is run only after a person's yes, whatever the
      policy says.
    - ``repeatable``: true if a call that was cut off may simply be made again.
    - ``checked``: the schema by which arguments are checked, where it is not ``parameters``.
    - ``definition_origins``: the origins of its definition, where others than this program have written it.
    - ``deferred``: true if a model is told of it only when it looks for it (`agent_core.tools.deferred`).
    - ``seconds``: how long one call may take, where that is not the limit of all tools.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    async def execute(self, **arguments: Any) -> ToolResult:
        """Run the tool."""
        ...


class ChannelPort(Protocol):
    """
    A turn's view of the place where its answer goes.

    ``send`` hands over the final answer, once per turn; nothing leaves the machine before the turn is
    committed. ``partial`` shows the text so far (all of it, not the new piece), a hint that may be dropped
    and never fails.
    """

    async def send(self, text: str) -> None:
        """Send the answer of this turn, as Markdown."""
        ...

    async def partial(self, text: str) -> None:
        """Show the unfinished answer, if the channel can."""
        ...


class StepJournal(Protocol):
    """
    The completed steps of a turn, so that a restarted turn resumes where it was.

    Steps are numbered from 0 within a turn, model answers and tool runs in one sequence. A finished step is
    durable before the next one starts. ``digest`` identifies the request: a recorded step whose digest
    differs is not used.
    """

    async def model_answer(self, number: int, digest: str) -> tuple[ModelAnswer, Origins] | None:
        """The recorded answer of step ``number`` and the origins of its prompt, or None."""
        ...

    async def record_model_answer(
        self, number: int, digest: str, answer: ModelAnswer, *, origins: Origins = ()
    ) -> None:
        """Make an answer durable."""
        ...

    async def tool_result(self, number: int, digest: str) -> ToolResult | None:
        """
        The recorded result of step ``number``, or None if the tool never started.

        A tool that had started without a result is answered with an error result that says that its
        outcome is unknown; only a tool that declares itself ``repeatable`` gives None.
        """
        ...

    async def record_tool_start(
        self,
        number: int,
        digest: str,
        call: ToolCall,
        *,
        effect: str,
        origins: Origins,
        approval: tuple[str, Origins, str, Sequence[Mapping[str, Any]], bool] | None,
    ) -> None:
        """
        Make durable that a tool is about to run.

        ``effect`` is that of the call (`agent_core.tools.effects.Effect`), ``origins`` are whose words the
        model had been shown, and ``approval`` says who has said yes to it, whose words what it keeps
        becomes by that, what the yes was based on, to which further calls it was, and True if that person has
        changed the arguments; None: nobody was asked.
        """
        ...

    async def record_tool_result(self, number: int, digest: str, result: ToolResult) -> None:
        """Make the result durable, also of a call that had nothing to start."""
        ...


class PicturePort(Protocol):
    """The pictures among the files of messages."""

    async def picture(
        self, attachment: Attachment, *, max_bytes: int, max_pixels: int, max_side: int
    ) -> tuple[str, bytes] | None:
        """Return media type (by content) and content of a picture, or None. Raises ValueError."""
        ...


class AttachmentPort(PicturePort, Protocol):
    """
    The files that came with messages, and those that go out: stored by their content, never changed.

    An attachment whose file is gone (kept for too long, removed by hand) raises `LookupError`, a disk that
    does not do it now `OSError`.
    """

    async def read(self, attachment: Attachment, *, max_bytes: int, offset: int = 0) -> bytes:
        """Up to ``max_bytes`` of the content from ``offset`` on."""
        ...

    async def keep_file(self, folder: Path, path: str, *, max_bytes: int) -> Attachment:
        """
        Store a copy of the regular file ``path`` below ``folder``, without following links.

        Raises ValueError for an unusable path or over ``max_bytes``, LookupError for no file.
        """
        ...


class SkillsPort(Protocol):
    """Instructions that a model can look up."""

    def list_skills(self) -> list[Skill]:
        """All skills, sorted by name."""
        ...

    def load_skill_body(self, name: str) -> str:
        """Return a skill's text without front matter. Raises `SkillInvalid`."""
        ...

    def list_skill_files(self, name: str) -> Sequence[str]:
        """Return the further files of a skill, by their path in its folder. Raises `SkillInvalid`."""
        ...

    def load_skill_file(self, name: str, file: str) -> str:
        """Return the text of one of them. Raises `SkillInvalid`."""
        ...
