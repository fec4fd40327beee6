"""
Proves a sender by a DKIM signature of the sender's own domain, where the mail provider says nothing. Only the
very From domain counts, and To or Cc must name us: any recipient can hand in a copy, and Delivered-To is
unsigned. Signatures per mail, tries and seconds are limited. Mails of people who may not write are not
verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from channels.email.parse.mail_addresses import without_tag
from channels.email.trust.dkim import DkimInvalid, Key, Signature, find_signatures, parse_key, verify
from channels.email.trust.dns import NamesUnavailable, TextRecords

LIMIT_S = 15.0
MAX_TRIED = 4


@dataclass(frozen=True, slots=True)
class Verification:
    """The proof of a sender, or why there is none."""

    by: str = ""
    lacks: str = ""


class SenderVerifier:
    """
    Verifies mails' signatures at Unix time ``now``, of senders it ``knows``.

    Mail of ``ingested`` senders is only read and may be for others.
    """

    def __init__(
        self,
        records: TextRecords,
        now: Callable[[], float],
        own: str,
        *,
        knows: Callable[[str], bool] = lambda _: True,
        ingested: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._records = records
        self._now = now
        self._own = without_tag(own)
        self._knows = knows
        self._ingested = ingested

    async def find(self, raw: bytes, sender: str) -> Verification:
        """Search proof that ``sender`` (normalised) wrote the mail."""
        if not self._knows(sender):
            return Verification()
        domain = sender.rpartition("@")[2]
        why = "it takes too long"
        with anyio.move_on_after(LIMIT_S):
            why = await self._find(raw, domain, anybody=self._ingested(sender))
        return Verification(lacks=why) if why else Verification(by=f"signed by {domain}")

    async def _find(self, raw: bytes, domain: str, *, anybody: bool) -> str:
        """Return why no signature proves the domain, or "" if one does."""
        signatures = await anyio.to_thread.run_sync(find_signatures, raw, self._now())
        its_own = [signature for signature in signatures if signature.domain == domain]
        why = "no usable signature of the domain" if signatures else "no usable signature"
        for signature in its_own[:MAX_TRIED]:
            try:
                recipients = await self._verify(raw, signature)
            except DkimInvalid as exc:
                why = str(exc)
            except NamesUnavailable:
                why = "DNS does not answer"
            else:
                if anybody or self._own in {without_tag(each) for each in recipients}:
                    return ""
                why = "the signed mail is not addressed to us"
        return why

    async def _verify(self, raw: bytes, signature: Signature) -> frozenset[str]:
        why: DkimInvalid | None = None
        for key in _keys(await self._records.get(signature.key_name)):
            try:
                return await anyio.to_thread.run_sync(verify, raw, signature, key)
            except DkimInvalid as exc:
                why = exc
        raise why or DkimInvalid("there is no such key")


def _keys(texts: Sequence[str]) -> list[Key]:
    found: dict[Key, None] = {}  # the same one twice is the same work twice
    for text in texts[:MAX_TRIED]:
        try:
            found[parse_key(text)] = None
        except DkimInvalid:
            continue
    return list(found)
