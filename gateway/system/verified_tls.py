"""
Changes aiohttp, so that no request of this process leaves the server's certificate unverified.

When it is imported aiohttp makes two contexts, both with all authorities of the system: one that verifies,
and one for ``ssl=False``, for which nothing here asks. With the first in the place of both there is no such
switch, not even for libraries, and the daemon takes 0.8 MB less.
"""

from __future__ import annotations

from aiohttp import connector

_VERIFIES, _DOES_NOT = "_SSL_CONTEXT_VERIFIED", "_SSL_CONTEXT_UNVERIFIED"


def verify_always() -> bool:
    """Make ``ssl=False`` verify, too, from now on. Returns whether aiohttp has the two contexts."""
    inside = vars(connector)
    if not {_VERIFIES, _DOES_NOT} <= inside.keys():
        return False
    inside[_DOES_NOT] = inside[_VERIFIES]
    return True
