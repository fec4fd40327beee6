"""Operations on people: who may write, and letting somebody in beside the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.operations.arguments import RequestInvalid
from gateway.queue.stores import Queue
from gateway.routing.access import Access
from gateway.routing.let_in import let_in, load, shut_out

PEOPLE_OPERATIONS = frozenset({"people_list", "inbox_allow"})


class PeopleOperations:
    """The part of `gateway.operations.service.Operations` about people."""

    _store: Queue
    _access: Access
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None

    async def people_list(self) -> dict[str, Any]:
        """All who may write, by channel; those ``let_in`` beside the settings can be removed."""
        await load(self._store, self._access)
        return {
            "rows": [
                {"channel": channel, "address": address, "role": role.value, "let_in": extra}
                for channel in self._access.channels()
                for address, role, extra in self._access.people(channel)
            ]
        }

    async def inbox_allow(self, address: str, remove: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Let somebody in beside the settings, and answer what was kept of them; with ``remove`` no more."""
        change = shut_out if remove else let_in
        done = await change(self._store, self._access, address)
        if done.problem:
            raise RequestInvalid(f"{done.address} {done.problem}")
        return {
            "address": done.address,
            "channels": list(done.channels),
            "messages": done.messages,
            "invitations": done.invitations,
            "running": self._report is not None,
        }
