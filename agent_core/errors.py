"""
The errors of the agent: of models, tools, budget and storage.

Each error says whether trying again later can help (``temporary``), what a stranger may read (``public``,
by default the first line of the class's docstring) and what the log should hold (``fields``); the cause is
in ``__cause__``. Libraries' exceptions are translated at the door and never seen above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from agent_core.language import gettext_noop

if TYPE_CHECKING:
    from agent_core.provenance import Origins


class AgentError(Exception):
    """Something went wrong while I worked on your message."""

    temporary: ClassVar[bool] = False

    def __init__(self, detail: str = "", /, *, public: str | None = None, **fields: Any) -> None:
        self.public = public or (type(self).__doc__ or "").strip().splitlines()[0]
        self.fields = fields
        super().__init__(detail or self.public)


class AwaitsApproval(AgentError):
    """I am waiting for an approval before I continue."""


class ModelError(AgentError):
    """The language model could not answer."""


class ModelUnavailable(ModelError):
    """The language model cannot be reached at the moment."""

    temporary = True


class ModelRateLimited(ModelError):
    """The language model gets more requests than it allows; I will try again."""

    temporary = True

    def __init__(self, detail: str = "", /, *, retry_after_s: float | None = None, **fields: Any) -> None:
        super().__init__(detail, retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s


class ModelRefused(ModelError):
    """The language model refused this request."""


class ModelUnreadable(ModelError):
    """
    The language model's server sent something that I cannot read.

    ``kind`` is ``large``, ``packed``, ``malformed``, ``redirect``, ``slow`` or ``crash``. Asking once more
    can help, except for ``slow``; a second one is final.
    """

    _PUBLIC: ClassVar[dict[str, str]] = {
        "large": gettext_noop("The language model's server sent an answer that is too long for me."),
        "packed": gettext_noop(
            "The language model's server sent a compressed answer, which I do not accept."
        ),
        "malformed": gettext_noop("The language model's server sent something that is not a valid answer."),
        "redirect": gettext_noop(
            "The language model's server redirects me; my operator must check its address."
        ),
        "crash": gettext_noop("The program that connects me to the language model failed on its answer."),
        "slow": gettext_noop("The language model's server sent its answer too slowly, so I stopped it."),
    }

    def __init__(self, detail: str = "", /, *, kind: str = "malformed", **fields: Any) -> None:
        super().__init__(detail, kind=kind, **{"public": self._PUBLIC.get(kind), **fields})
        self.kind = kind


class ModelAuthFailed(ModelError):
    """The language model does not accept my credentials; my operator must check them."""


class ContextTooLong(ModelError):
    """This conversation is longer than the language model can read; `!new` starts another one."""


class StreamBroken(ModelError):
    """The connection to the language model broke in the middle of an answer."""

    temporary = True

    def __init__(self, detail: str = "", /, *, partial: str = "", **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.partial = partial


class TurnLimitReached(AgentError):
    """This took more steps, time or text than I am allowed to spend on one message or in a day."""


class BudgetSpent(AgentError):
    """Today's budget for the language model is spent."""


class CreditSpent(ModelError, BudgetSpent):
    """My account at the language model's provider has no credit or has reached its limit."""


class ToolError(AgentError):
    """
    A tool did not do what it should.

    ``origins`` are whose words the text is made of, besides the owner's.
    """

    def __init__(self, detail: str = "", /, *, origins: Origins = (), **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.origins = origins


class ToolRetry(ToolError):
    """The tool was called with invalid arguments."""


class ToolFailed(ToolError):
    """The tool failed."""


class ToolDenied(ToolError):
    """The tool may not be used here."""


class MemoryConflict(AgentError):
    """The memory document was changed by another conversation in the meantime."""

    temporary = True

    def __init__(
        self, detail: str = "", /, *, current_text: str = "", current_version: int = 0, origins: Origins = ()
    ) -> None:
        super().__init__(detail, current_version=current_version)
        self.current_text = current_text
        self.current_version = current_version
        self.origins = origins


class CursorMoved(AgentError):
    """Somebody else has consolidated or reset the conversation in the meantime."""

    temporary = True


class StorageUnavailable(AgentError):
    """My disk accepts no writes at the moment; nothing is lost, I will try again."""

    temporary = True


class DocumentUnusable(AgentError):
    """I cannot read my notes, because their file is not a regular file."""


class SkillInvalid(AgentError):
    """A skill file cannot be read."""


@dataclass(frozen=True, slots=True)
class Failure:
    """
    The facts about a failed request from which `llm.model_errors.classify` builds its error.

    Args:
        status: The HTTP status, if the server gave one.
        text: The message of the server or the library.
        code: The server's own short name of the error, if any.
        transport: No answer came: refused, cut, not resolved, timed out.
        secret: The key in use, to be kept out of the text.
        unreadable: An answer came and cannot be used; the kind of `ModelUnreadable`.
    """

    status: int | None = None
    text: str = ""
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: bool = False
    secret: str = ""
    unreadable: str = ""
