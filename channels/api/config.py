"""The settings of the endpoint for OpenAI's clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from channels.plugin import AccountConfig


class ApiConfig(AccountConfig):
    """
    Lets programs that speak OpenAI's API talk to squidbot, at ``/v1/`` of ``gateway.http.listen``, with a
    token of ``squidbot tokens add``; see docs/openai-endpoint.md.
    """

    allow_from: tuple[str, ...] = ()
    """Has no use here: a token lets its person in, who may talk to the bot on another channel."""
    batching: Literal["each"] = "each"
    """Every request has an answer of its own."""
    model: str = Field(default="squidbot", min_length=1, max_length=100)
    """The name of the model that programs see."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/\s]{1,255}$")], ...] = ()
    """
    Web pages that may call the endpoint from a browser (CORS), such as ``https://chat.example.org``; a token
    they need all the same. Programs outside of browsers need no entry.
    """

    @property
    def admits_others(self) -> bool:
        """Return True: a token lets its person in."""
        return True
