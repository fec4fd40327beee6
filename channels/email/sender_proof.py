"""
Proof of a sender by a signature of his own domain, where one's provider says nothing: DKIM, aligned.

A signature counts if its domain and the From domain belong to one organisation (RFC 7489, section 3.1.1,
"relaxed"). Which that is, is found by walking up the tree of names to the DMARC record (the successor of RFC
7489 does the same): no list of public suffixes grows old here. Two names beside each other do not count, only
one above the other. Where the From domain asks for strict
alignment (``adkim=s``) it must be the very domain.

Everything has a limit: signatures per mail, names asked per mail, tries per name, seconds in all. Mails of
people who could not write to us anyway are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread
import structlog

from channels.email.dkim import Signature, find_signatures, verify
from channels.email.dkim_tags import DkimInvalid, Key, parse_key, parse_tags
from channels.email.names import NamesUnavailable, TextRecords

__all__ = ["SenderProof"]

LIMIT_S = 15.0
MAX_LABELS = 8
MAX_TRIED = 4
_log = structlog.get_logger(__name__)


class SenderProof:
    """
    Verifies signatures.

    Args:
        records: DNS.
        now: Seconds since 1970.
        knows: Whether somebody of this address may write to us at all.
    """

    def __init__(
        self, records: TextRecords, now: Callable[[], float], knows: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._records = records
        self._now = now
        self._knows = knows

    async def find(self, raw: bytes, sender: str) -> str:
        """
        What proves that ``sender`` wrote the mail; empty if nothing does.

        Args:
            raw: The whole mail, as it was fetched.
            sender: Its From address, in normal form.
        """
        if not self._knows(sender):
            return ""
        domain = sender.rpartition("@")[2]
        why = "it takes too long"
        with anyio.move_on_after(LIMIT_S):
            why = await self._find(raw, domain)
            if not why:
                return f"signed by {domain}"
        _log.info("mail.not_proven", reason=why)
        return ""

    async def _find(self, raw: bytes, domain: str) -> str:
        """Why no signature proves the domain; empty if one does."""
        signatures = await anyio.to_thread.run_sync(find_signatures, raw, self._now())
        near = [signature for signature in signatures if _may_belong(signature.domain, domain)]
        why = "no usable signature of the domain" if signatures else "no usable signature"
        for signature in sorted(near, key=lambda one: one.domain != domain)[:MAX_TRIED]:
            try:
                if signature.domain != domain and not await self._aligned(signature.domain, domain):
                    why = "a signature of another organisation"
                    continue
                await self._verify(raw, signature)
            except DkimInvalid as exc:
                why = str(exc)
            except NamesUnavailable:
                why = "DNS does not answer"
            else:
                return ""
        return why

    async def _verify(self, raw: bytes, signature: Signature) -> None:
        why: DkimInvalid | None = None
        for key in _keys(await self._records.get(signature.key_name)):
            try:
                await anyio.to_thread.run_sync(verify, raw, signature, key)
            except DkimInvalid as exc:
                why = exc
            else:
                return
        raise why or DkimInvalid("there is no such key")

    async def _aligned(self, signer: str, domain: str) -> bool:
        """Whether two different names belong to one organisation, and their owner lets one sign for both."""
        whole, policy = await self._organisation(domain)
        # One of the two must be the organisation itself: some registries have a record and do not say psd=y.
        if policy.get("adkim", "r").strip().lower() == "s" or whole not in (signer, domain):
            return False
        return whole == (await self._organisation(signer))[0]

    async def _organisation(self, name: str) -> tuple[str, dict[str, str]]:
        """The highest name with a DMARC record above ``name`` (or itself), and the nearest record."""
        labels = name.split(".")
        first = max(0, len(labels) - MAX_LABELS)
        found = name
        nearest: dict[str, str] = {}
        for start in range(first, len(labels) - 1):
            above = ".".join(labels[start:])
            policy = _policy(await self._records.get(f"_dmarc.{above}"))
            if policy is None:
                continue
            nearest = nearest or policy
            if policy.get("psd") == "y" and start > 0:
                # The record of a registry: the organisation is one label below it.
                return ".".join(labels[start - 1 :]), nearest
            found = above
            if policy.get("psd") == "n":
                break
        return found, nearest


def _may_belong(signer: str, domain: str) -> bool:
    """Cheap and before any question: two names of one organisation have their last two labels in common."""
    return signer.split(".")[-2:] == domain.split(".")[-2:] and "." in signer


def _keys(texts: Sequence[str]) -> list[Key]:
    found = []
    for text in texts[:MAX_TRIED]:
        try:
            found.append(parse_key(text))
        except DkimInvalid:
            continue
    return found


def _policy(texts: Sequence[str]) -> dict[str, str] | None:
    records = [text for text in texts if text.replace(" ", "").lower().startswith("v=dmarc1")]
    if len(records) != 1:
        return None
    try:
        return parse_tags(records[0])
    except DkimInvalid:
        return None
