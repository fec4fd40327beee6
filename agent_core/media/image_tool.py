"""
The tool ``image``: a provider makes the requested picture, and it is sent with the answer. The prompt leaves
the machine, so a call counts as sending data to a server, and it costs money. It is not repeatable: an
interrupted call may have been paid, so its outcome is unknown and it is not made again automatically. Its
cost is recorded before its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from agent_core.errors import ModelError, ModelUnreadable, ToolFailed
from agent_core.media.media_config import ImageSettings
from agent_core.media.pictures import GeneratedPicture, picture_type
from agent_core.messages import Attachment
from agent_core.models import ToolResult, Usage, tool_parameters
from agent_core.prompt import attachment_lines
from agent_core.tools.effects import Effect

if TYPE_CHECKING:
    from agent_core.media.media_client import ProviderPictures

_LONGEST = 8_000
_GUESSED_TOKENS = 1_000
_SIZES = "^(auto|[1-9][0-9]{1,3}x[1-9][0-9]{1,3})$"


class Payment(Protocol):
    """The cost of one request, from its reservation until it is recorded."""

    async def begin(self, tokens: int, usd: float | None) -> str:
        """Return why the budget refuses the request, or "". ``usd`` None: the cost is unknown."""
        ...

    async def end(self, usage: Usage | None) -> None:
        """Record the cost; None: nothing."""
        ...


StartPayment = Callable[[], Payment]
"""Makes a payment for the run in hand."""
KeepPicture = Callable[[str, str, bytes], Awaitable[Attachment]]
"""Keeps a file, by its name, its type and its content; raises `ToolFailed` if it cannot."""


class ImageTool:
    """The tool ``image`` of one run; ``maker`` is opened with the first call."""

    name = "image"
    deferred = True
    effect = Effect.NETWORK_SEND
    description = (
        "Make a picture with an image model and send it along with your answer. It costs money: make "
        "what was asked for, once. Describe the picture fully in the prompt; the image model sees "
        "nothing else."
    )
    parameters = tool_parameters(
        "prompt",
        prompt="string",
        count={"type": "integer", "minimum": 1, "description": "How many; 1 if not asked for more"},
        size={"type": "string", "pattern": _SIZES, "description": "Such as 1024x1024 or 1536x1024"},
    )

    def __init__(
        self,
        settings: ImageSettings,
        maker: Callable[[], ProviderPictures],
        keep: KeepPicture,
        pays: StartPayment,
    ) -> None:
        self.seconds = settings.timeout_s + 30.0
        self._settings = settings
        self._maker = maker
        self._keep = keep
        self._pays = pays
        self._made = 0

    def state(self) -> int:
        """Return the number of pictures made in this turn."""
        return self._made

    def restore(self, state: Any) -> None:
        """Restore that number."""
        self._made = state if isinstance(state, int) else 0

    async def execute(self, **arguments: Any) -> ToolResult:
        """Have the pictures made and attach them."""
        prompt, count = str(arguments.get("prompt") or "").strip(), int(arguments.get("count") or 1)
        if not prompt:
            return _failed("'prompt' is missing.")
        if len(prompt) > _LONGEST:
            return _failed(f"The prompt has more than {_LONGEST} characters. Nothing was made.")
        left = self._settings.max_per_turn - self._made
        if count > left:
            most = self._settings.max_per_turn
            return _failed(f"At most {most} pictures for one question; {left} are left. Nothing was made.")
        payment = self._pays()
        # One that is cut off, or whose answer nobody can read, may have been paid.
        usage: Usage | None = Usage(calls=1, cost_usd=self._price(count), model=self._settings.model)
        refused = await payment.begin(_GUESSED_TOKENS, self._price(count))
        if refused:
            return _failed(f"Nothing was made: {refused}. Say so.")
        try:
            self._made += count
            size = str(arguments.get("size") or self._settings.size)
            made = await self._maker().make(prompt, count=count, size=size)
            usage = _usage(made)
        except ModelError as error:
            usage = usage if isinstance(error, ModelUnreadable) else None
            again = "It may work later." if error.temporary else "Do not try it again in this turn."
            raise ToolFailed(f"No picture came: {_in_words(error)} {again}") from error
        finally:
            await payment.end(usage)
        return await self._sent(made, count)

    async def _sent(self, made: GeneratedPicture, count: int) -> ToolResult:
        files = []
        for number, content in enumerate(made.pictures, start=1):
            media_type = picture_type(content)
            ending = media_type.rpartition("/")[2]
            files.append(await self._keep(f"picture-{number}.{ending}", media_type, content))
        fewer = f" The provider made {len(files)} instead of {count}." if len(files) < count else ""
        told = f"Done: {attachment_lines(files)} goes out with your answer.{fewer}"
        return ToolResult(content=told, attachments=tuple(files))

    def _price(self, count: int) -> float | None:
        price = self._settings.usd_per_image
        return None if price is None else price * count


def _usage(made: GeneratedPicture) -> Usage:
    prompt, written = made.tokens
    return Usage(
        prompt_tokens=prompt, completion_tokens=written, calls=1, cost_usd=made.cost_usd, model=made.model
    )


def _in_words(error: ModelError) -> str:
    return error.public.replace("language model", "image model")


def _failed(text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True)
