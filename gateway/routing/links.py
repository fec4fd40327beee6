"""
Addresses that people have proved to be theirs, beside the settings (``people``). Somebody names another
address of theirs and is given a code that counts only from there; whoever sends it from there is told whose
person that makes them, and confirms it. Each step is one swap of one text of the store, so a command that is
done again after a crash finds its step done. Who may take part: `gateway.turns.commands.link_command`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from agent_core.ports import Clock
from gateway.routing.access import Access, normalise
from gateway.store.stores import StateStore, StoreUnavailable

CODE_S = 15 * 60.0
MAX_TRIES = 5
"""Wrong codes after which an address needs a new one."""
MAX_REQUESTS = 100
MAX_LINKED = 500
TOPIC = "linked-people"
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class LinkedAddress:
    """An address is the person of ``main`` since ``at`` (ISO); ``place`` is the conversation that asked."""

    main: str
    at: str
    place: str


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """``main`` says that ``address`` is theirs; ``shown``: the code came from there, and it was told that."""

    main: str
    address: str
    digest: str
    at: str
    place: str
    tries: int = 0
    shown: bool = False


@dataclass(frozen=True, slots=True)
class LinkBook:
    """The stored links by their addresses, and the requests, oldest first."""

    linked: Mapping[str, LinkedAddress] = field(default_factory=dict)
    requests: Sequence[LinkRequest] = ()

    def mains(self) -> dict[str, str]:
        """Return whose person each address is."""
        return {address: link.main for address, link in self.linked.items()}

    def for_address(self, address: str) -> list[LinkRequest]:
        """Return the requests about an address."""
        return [one for one in self.requests if one.address == address]

    def without(self, address: str) -> LinkBook:
        """Return the book without the requests about an address."""
        return replace(self, requests=[one for one in self.requests if one.address != address])


def read_book(text: str | None) -> LinkBook:
    """Read the stored text; one that cannot be read has no links."""
    try:
        kept = json.loads(text or "{}")
        linked = {str(address): LinkedAddress(**one) for address, one in kept.get("linked", {}).items()}
        return LinkBook(linked, [LinkRequest(**one) for one in kept.get("requests", ())])
    except (ValueError, TypeError, AttributeError):
        return LinkBook()


async def load(state: StateStore, access: Access) -> LinkBook:
    """Make the stored links count in ``access``, and return them. Raises `StoreUnavailable`."""
    book = read_book(await state.read(TOPIC))
    access.link(book.mains())
    return book


class PeopleLinks:
    """Links addresses to people. Addresses are normalised. All calls raise `StoreUnavailable`."""

    def __init__(self, state: StateStore, access: Access, clock: Clock) -> None:
        self._state = state
        self._access = access
        self._clock = clock

    async def request(self, main: str, address: str, place: str) -> str:
        """Return a new code for ``address``, in place of an earlier one; empty: there are too many."""
        number = "".join(secrets.choice("0123456789") for _ in range(_DIGITS))
        asked = LinkRequest(main, address, _digest(main, address, number), self._now(), place)

        def add(book: LinkBook) -> LinkBook:
            kept = [one for one in book.requests if (one.main, one.address) != (main, address)]
            has_room = len(kept) < MAX_REQUESTS and len(book.linked) < MAX_LINKED
            return replace(book, requests=[*kept, asked] if has_room else kept)

        code = f"{number[: _DIGITS // 2]}-{number[_DIGITS // 2 :]}"
        return code if asked in (await self._change(add)).requests else ""

    async def show(self, address: str, code: str) -> LinkRequest | None:
        """Return the request of a code that came from its address; None counts as a wrong try."""
        number = "".join(filter(str.isdigit, code))

        def is_it(one: LinkRequest) -> bool:
            return secrets.compare_digest(one.digest, _digest(one.main, address, number))

        def check(book: LinkBook) -> LinkBook:
            found = book.for_address(address) if self._is_free(address) else []
            right = any(map(is_it, found))
            kept = [replace(one, shown=right and is_it(one), tries=one.tries + (not right)) for one in found]
            left = [one for one in kept if one.tries < MAX_TRIES]
            return replace(book, requests=[*book.without(address).requests, *left])

        book = await self._change(check)
        return next((one for one in book.for_address(address) if one.shown), None)

    async def confirm(self, address: str) -> LinkedAddress | None:
        """Link an address by the request that was shown there, once; None: there is none, and no link."""

        def link(book: LinkBook) -> LinkBook:
            shown = [one for one in book.for_address(address) if one.shown and self._is_free(address)]
            if address in book.linked or not shown or len(book.linked) >= MAX_LINKED:
                return book
            main = self._access.household.main_address(shown[0].main)
            made = LinkedAddress(main, self._now(), shown[0].place)
            return replace(book.without(address), linked={**book.linked, address: made})

        return (await self._change(link)).linked.get(address)

    async def decline(self, address: str) -> None:
        """Drop the requests about an address."""
        await self._change(lambda book: book.without(address))

    async def unlink(self, address: str) -> bool:
        """Make an address a person of its own; return False if it was not linked here."""
        was = address in (await load(self._state, self._access)).linked

        def remove(book: LinkBook) -> LinkBook:
            left = {name: link for name, link in book.linked.items() if name != address}
            return replace(book.without(address), linked=left)

        await self._change(remove)
        return was

    def _is_free(self, address: str) -> bool:
        """Return True if an address belongs to no person of several, and is not the owner's."""
        return not (
            self._access.household.rules(address).addresses or self._access.is_owner_anywhere(address)
        )

    async def _change(self, change: Callable[[LinkBook], LinkBook]) -> LinkBook:
        for _ in range(20):
            before = await self._state.read(TOPIC)
            book = read_book(before)
            book = change(replace(book, requests=[one for one in book.requests if self._is_open(one)]))
            kept = {name: asdict(link) for name, link in book.linked.items()}
            text = json.dumps({"linked": kept, "requests": [asdict(one) for one in book.requests]})
            if text == before or await self._state.swap(TOPIC, before, text):
                self._access.link(book.mains())
                return book
        raise StoreUnavailable("the links of people are being changed elsewhere")

    def _is_open(self, one: LinkRequest) -> bool:
        return 0 <= (self._clock.now() - datetime.fromisoformat(one.at)).total_seconds() <= CODE_S

    def _now(self) -> str:
        return self._clock.now().isoformat()


def _digest(main: str, address: str, number: str) -> str:
    return hashlib.sha256(f"{main} {normalise(address)} {number}".encode()).hexdigest()
