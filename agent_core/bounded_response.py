"""
Answers of HTTP servers whose head is bounded. aiohttp bounds the headers of one answer, but reads any number
of interim answers (status 1xx) before the final one, which keeps the event loop busy for as long as a server
likes. Real servers send one or two.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError

_MOST_INTERIM = 16


class BoundedResponse(aiohttp.ClientResponse):
    """For ``response_class`` of a session: more than 16 interim answers are a `ClientResponseError`."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        protocol, left = connection.protocol, 1 + _MOST_INTERIM
        read = protocol.read

        async def read_counted_piece() -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise HttpProcessingError(code=502, message="more interim answers than any server sends")
            return await read()

        protocol.read = read_counted_piece
        try:
            return await super().start(connection)
        finally:
            protocol.read = read
