"""
Knows our mails by the Message-IDs that a server set in place of ours, as Amazon SES and Exchange do. Our
mails bear their id also in `threads.OWN_ID_FIELD`; the copy shows both, and so do some servers' replies to
DATA. Pairs are committed with the position; the first word about an id counts, and only for recipients of
that mail (`Repeats.has_written_to`), since they can send forged copies. The newest few thousand are kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from channels.base import Inbox
from channels.email.parse.mail_threads import is_own_id

_SLOTS = 4096
_LOOKED_AT = 5
"""The number of a thread's newest ids that are looked up."""
_SES_HOST = re.compile(r"email-smtp(?:-fips)?\.([a-z0-9-]{1,40})\.amazonaws\.com")
_SES_REPLY = re.compile(r"Ok ([0-9a-f-]{20,80})")
_EXCHANGE_REPLY = re.compile(r"(<[!-;=?-~]{1,250}@[!-;=?-~]{1,250}>) \[(?:InternalId|Hostname)=")


class ServerIds:
    """The ids that the server of one account has given our mails."""

    def __init__(self, account: str) -> None:
        self._account = account
        self.news: dict[str, str] = {}
        """The ids that are not committed yet: ours, by the server's."""

    def learn(self, given: str | None, own: str) -> None:
        """Note that a mail with our id ``own`` has the Message-ID ``given``."""
        if given and given != own and not is_own_id(given, account=self._account):
            self.news.setdefault(given, own)

    async def to_commit(self, inbox: Inbox) -> dict[str, str]:
        """Return the new ids as positions."""
        return {
            _slot(given): f"{given} {own}"
            for given, own in list(self.news.items())
            if await self._known(inbox, given) is None
        }

    def note_commit(self, given: Sequence[str]) -> None:
        """Note that the result of `to_commit` is committed."""
        for each in given:
            self.news.pop(each, None)

    async def translate_references(self, inbox: Inbox, references: Sequence[str]) -> dict[str, str]:
        """Our ids of those mails in a thread that are ours under the server's id."""
        if any(is_own_id(each, account=self._account) for each in references):
            return {}
        for given in reversed(references[-_LOOKED_AT:]):
            own = self.news.get(given) or await self._known(inbox, given)
            if own is not None:
                return {given: own}
        return {}

    async def _known(self, inbox: Inbox, given: str) -> str | None:
        known, _, own = (await inbox.position(_slot(given)) or "").partition(" ")
        return own if known == given and is_own_id(own, account=self._account) else None


def message_id_in_reply(text: str, host: str) -> str | None:
    """
    The Message-ID that the reply to DATA names; None for servers whose replies do not name it.

    Sources: "Message ID" in the SES developer guide (``<id@email.amazonses.com>`` in us-east-1, elsewhere the
    name of the region), and what Exchange replies, ``2.6.0 <id> [InternalId=…, Hostname=…]``.
    """
    if (region := _SES_HOST.fullmatch(host.lower())) and (found := _SES_REPLY.search(text)):
        where = "email" if region[1] == "us-east-1" else region[1]
        return f"<{found[1]}@{where}.amazonses.com>"
    named = _EXCHANGE_REPLY.search(text)
    return named[1] if named else None


def _slot(given: str) -> str:
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()[:4], "big")
    return f"server-id-{number % _SLOTS}"
