"""
Guards of aiohttp: answers whose head is bounded, and certificates that are always verified.

aiohttp bounds the headers of one answer, but reads any number of interim answers (status 1xx) before the
final one, which keeps the event loop busy for as long as a server likes. Real servers send one or two. When
it is imported it makes two TLS contexts, both with all authorities of the system: one that verifies, and one
for ``ssl=False``, for which nothing here asks. With the first in the place of both there is no such switch,
not even for libraries, and the daemon takes 0.8 MB less.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from aiohttp import connector
from aiohttp.http import HttpProcessingError

_MAX_INTERIM = 16
_VERIFIES, _DOES_NOT = "_SSL_CONTEXT_VERIFIED", "_SSL_CONTEXT_UNVERIFIED"


class BoundedResponse(aiohttp.ClientResponse):
    """A ``response_class`` of sessions: more than 16 interim answers are a `ClientResponseError`."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        protocol, left = connection.protocol, 1 + _MAX_INTERIM
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


def verify_always() -> bool:
    """Make ``ssl=False`` verify, too, from now on. Returns whether aiohttp has the two contexts."""
    inside = vars(connector)
    if not {_VERIFIES, _DOES_NOT} <= inside.keys():
        return False
    inside[_DOES_NOT] = inside[_VERIFIES]
    return True
