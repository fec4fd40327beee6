"""Which of the workers on a database begins first with which session. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from agent_core.messages import SessionKey

__all__ = ["first_worker"]


def first_worker(session: SessionKey, workers: Iterable[str]) -> str | None:
    """
    The worker that begins first with a session; None: there is none.

    All of them find the same one, so they seldom meet at a claim. With a worker that comes or goes only the
    sessions change hands that it gets or had (rendezvous hashing, https://doi.org/10.1109/90.663936).
    """

    def weight(worker: str) -> bytes:
        return hashlib.blake2b(f"{worker} {session}".encode("utf-8", "surrogatepass")).digest()

    return max(workers, key=weight, default=None)
