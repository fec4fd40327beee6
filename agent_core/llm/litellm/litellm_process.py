"""
The daemon's side of litellm's process. One process serves all models that need litellm.

It holds no key: each request brings its own. It is started with the daemon, so that the first message does
not wait. A call whose process ends becomes a `ModelUnreadable` of the kind ``crash``: it is asked again
once, in a new process, and a second one is final, so that an answer that kills the process does not do so
for an hour.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any

from agent_core.children.service import ChildProcess
from agent_core.llm.litellm.litellm_messages import piece_in
from agent_core.llm.openai_format import Piece

_CHILD = ("-m", "agent_core.llm.litellm.litellm_child")


class LiteLLMProcess(ChildProcess):
    """The process of litellm for all models; ``command`` is for tests."""

    def __init__(
        self, *, idle_s: float = 3600.0, variables: Collection[str] = (), command: Sequence[str] | None = None
    ) -> None:
        super().__init__("litellm", command or (sys.executable, *_CHILD), idle_s=idle_s, variables=variables)

    def ask(
        self, request: Mapping[str, Any], *, stream: bool, cost: bool, task: str = "chat"
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of one answer to a chat, or with ``task`` to something else; see `ChildProcess.call`."""
        asked = {"request": request, "stream": stream, "cost": cost, "task": task}
        return self.call(asked, piece_in)


def access(api_base: str, api_key: str) -> dict[str, str]:
    """A request's data about its server; litellm's SDK requires a key even if the server does not."""
    key = api_key or ("none" if api_base else "")
    return {name: said for name, said in (("api_base", api_base), ("api_key", key)) if said}
