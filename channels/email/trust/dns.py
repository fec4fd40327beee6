"""
Looks up TXT records, with time limits, retries and a cache: the only user of dnspython. The rest of the
package asks `TextRecords`, which asks `Lookup`, one try at a time; tests bring their own `Lookup`. Two
results must not be confused: "there is none" (`NoSuchName`) is an answer and is cached; "nobody answers"
(`NamesUnavailable`) is not, and the next mail asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import anyio

from agent_core.bounded import Bounded

if TYPE_CHECKING:
    import dns.nameserver

TRIES = 3
TRY_LIMIT_S = 3.0
REMEMBERED = 500
MAX_TEXT = 8_000
MAX_TEXTS = 10


class NoSuchName(Exception):
    """DNS has nothing under this name."""


class NamesUnavailable(Exception):
    """DNS does not respond, or not properly."""


class Lookup(Protocol):
    """One query, without retries."""

    async def __call__(self, name: str, limit_s: float) -> Sequence[str]:
        """Return the joined TXT records of ``name``. Raises NoSuchName, or NamesUnavailable in time."""
        ...


class DnsLookup:
    """Asks the configured resolvers (``address`` or ``address:port``), else the system's."""

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = tuple(servers)

    async def __call__(self, name: str, limit_s: float) -> Sequence[str]:
        """See `Lookup`."""
        # Loaded by the first mail that needs it.
        import dns.asyncresolver  # noqa: PLC0415 - as it says
        import dns.exception  # noqa: PLC0415
        import dns.resolver  # noqa: PLC0415

        try:
            resolver = dns.asyncresolver.Resolver(configure=not self._servers)
            if self._servers:
                resolver.nameservers = [_nameserver(text) for text in self._servers]
            answer = await resolver.resolve(f"{name}.", "TXT", lifetime=limit_s, search=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as exc:
            raise NoSuchName(name) from exc
        except (dns.exception.DNSException, OSError, ValueError) as exc:
            raise NamesUnavailable(f"{name}: {type(exc).__name__}") from exc
        return [b"".join(record.strings).decode("ascii", "replace") for record in answer]


def _nameserver(text: str) -> dns.nameserver.Nameserver:
    import dns.nameserver  # noqa: PLC0415 - as above

    host, colon, port = text.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.startswith("[")):
        return dns.nameserver.Do53Nameserver(host.strip("[]"), int(port))
    return dns.nameserver.Do53Nameserver(text.strip("[]"))


class TextRecords:
    """TXT records by name, cached on a ``monotonic`` clock."""

    def __init__(self, lookup: Lookup, monotonic: Callable[[], float]) -> None:
        self.lookup = lookup
        self._monotonic = monotonic
        self._asking: dict[str, anyio.Event] = {}
        self._known: Bounded[str, tuple[float, tuple[str, ...]]] = Bounded(REMEMBERED)

    async def get(self, name: str) -> tuple[str, ...]:
        """Return the TXT records of ``name``. Raises NamesUnavailable after several tries."""
        while True:
            known = self._known.get(name)
            if known is not None and self._monotonic() - known[0] < 300.0:
                return known[1]
            asking = self._asking.get(name)
            if asking is None:
                break
            await asking.wait()
        answered = self._asking[name] = anyio.Event()
        try:
            texts = await self._ask(name)
        finally:
            del self._asking[name]
            answered.set()
        self._known[name] = (self._monotonic(), texts)
        return texts

    async def _ask(self, name: str) -> tuple[str, ...]:
        for left in reversed(range(TRIES)):
            try:
                with anyio.fail_after(TRY_LIMIT_S):
                    found = await self.lookup(name, TRY_LIMIT_S)
            except NoSuchName:
                return ()
            except (NamesUnavailable, TimeoutError) as exc:
                if not left:
                    raise NamesUnavailable(f"{name}: no answer in {TRIES} tries ({exc})") from exc
                await anyio.sleep(0.5)
            else:
                return tuple(text for text in found if len(text) <= MAX_TEXT)[:MAX_TEXTS]
        raise AssertionError("unreachable: the last try returns or raises")
