"""How the starting process reaches into the mail server: one JSON line asked, one JSON line answered.

On loopback, and every request carries the token from the configuration file, which only its owner can
read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import json
from typing import TYPE_CHECKING, Any

from devservers.mailhost.faults import Fault, FaultPlan, PlannedFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_LINE = 1_000_000


class Control:
    """Answers the requests of `MailServer`."""

    def __init__(
        self, token: str, faults: FaultPlan, add_user: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """Take what the requests act on."""
        self._token = token
        self._faults = faults
        self._add_user = add_user

    async def listen(self, port: int) -> asyncio.Server:
        """Open the control port."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MAX_LINE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), 10))
            answer = {"ok": await self._do(**request)}
        except Exception as error:  # noqa: BLE001 - the asker gets it, whatever it is
            answer = {"error": repr(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _do(self, token: str, action: str, **arguments: Any) -> Any:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("wrong token")
        match action:
            case "plan":
                self._faults.add(PlannedFault(**arguments | {"fault": Fault(arguments["fault"])}))
            case "clear":
                self._faults.clear()
            case "pending":
                return self._faults.pending()
            case "attempts":
                return [dataclasses.asdict(attempt) for attempt in self._faults.attempts]
            case "add-user":
                await self._add_user(arguments["name"], arguments["password"])
            case _:
                raise ValueError(action)
        return None
