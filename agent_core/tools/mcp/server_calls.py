"""
The calls on a connection, and the questions of the server to a person during them. In the older era of the
protocol a server asks by a request of its own, which does not say during which call. So it is put to the
person of the only call that is made. It is declined if there are several, or if the answer to an earlier one
was not waited for: nobody is asked for somebody else's call. Only imported together with the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import mcp_types as types

from agent_core.tools.mcp.server_connection import Ask, ElicitedQuestion, ServerError, ServerLost
from agent_core.tools.person_port import FormReply


class McpCall:
    """One call in flight; questions during it end with it."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._scopes: set[anyio.CancelScope] = set()

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask; what is not answered, or came with the call's end, is cancelled."""
        if self._ask is None:
            return types.ElicitResult(action="decline")
        reply = FormReply("cancel")
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                reply = await self._ask(_question(params))
            finally:
                self._scopes.discard(scope)
        if reply.action != "accept" or isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action=reply.action)
        return types.ElicitResult(action="accept", content=dict(reply.content or {}))

    async def responses(self, wanted: types.InputRequiredResult) -> dict[str, Any] | None:
        """Answer the inputs that a result asks for. Raises ServerLost; the effect is then unknown."""
        if not wanted.input_requests:
            await anyio.sleep(0.25)  # it has only put the call off
            return None
        given: dict[str, Any] = {}
        for name, each in wanted.input_requests.items():
            match each:
                case types.ElicitRequest():
                    given[name] = await self.elicit(each.params)
                case _:
                    raise ServerLost("the server wants to use a model, or to know folders, which is refused")
        return given

    def end(self) -> None:
        """End all questions of this call."""
        for scope in self._scopes:
            scope.cancel()


class Calls:
    """All calls of one connection."""

    def __init__(self) -> None:
        self._made: list[McpCall] = []
        self._is_unclear = False
        """Whether the server may still carry out a call for which nobody waits."""

    @contextmanager
    def track_call(self, ask: Ask | None) -> Iterator[McpCall]:
        """Inside the block, a call is in flight."""
        call = McpCall(ask)
        self._made.append(call)
        is_answered = False
        try:
            yield call
            is_answered = True
        except ServerError:
            is_answered = True
            raise
        finally:
            self._is_unclear = self._is_unclear or not is_answered
            self._made.remove(call)
            call.end()

    async def elicit(self, _context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        """A server asks by a request of its own; is given to the SDK."""
        call = self._only()
        return types.ElicitResult(action="decline") if call is None else await call.elicit(params)

    def _only(self) -> McpCall | None:
        """The call for which a server asks; None: that is not clear."""
        return self._made[0] if len(self._made) == 1 and not self._is_unclear else None


def _question(params: types.ElicitRequestParams) -> ElicitedQuestion:
    if isinstance(params, types.ElicitRequestURLParams):
        return ElicitedQuestion(params.message, address=params.url)
    return ElicitedQuestion(params.message, params.requested_schema)
