"""Finds what came into a folder of the mailbox that is not the inbox. It changes nothing there."""

from __future__ import annotations

from agent_core.language import _
from agent_core.text import one_line
from channels.base import ChannelMisconfigured, FolderNews
from channels.email.imap.folders import WantedFolder
from channels.email.imap.mailbox import Mailbox
from channels.email.parse.mime import decoded_header
from channels.email.parse.unreadable import headers_of
from channels.email.receive.mail_fetching import MailFetcher

_READ_AT_ONCE = 100
"""With words to look for, so many mails are read at one look, and the others at the next one."""
_SHOWN = 10
_CHARS = 120


async def find_new_mails(mailbox: Mailbox, folder: str, mark: str, words: str) -> FolderNews:
    """See `channels.base.SupportsFolders.new_in_folder`. Opens the folder with EXAMINE, mails with PEEK."""
    wire = WantedFolder((folder,)).find_or_none(await mailbox.folders())
    if wire is None:
        raise ChannelMisconfigured(f"there is no folder {folder!r} in the mailbox")
    if wire.upper() == "INBOX":
        raise ChannelMisconfigured("what comes into the inbox is answered anyway; name another folder")
    selected = await mailbox.select(wire, read_only=True)
    validity, _colon, seen = mark.partition(":")
    here = f"{selected.uidvalidity}:{selected.uidnext - 1}"
    if not mark:
        return FolderNews((), 0, here)
    if validity != str(selected.uidvalidity):
        told = _("The mail server has made this folder anew. I say what is new from here on.")
        return FolderNews((told,), 1, here)
    uids = await mailbox.newer_than(int(seen))
    read = uids[: _READ_AT_ONCE if words else _SHOWN]
    fetcher, lines = MailFetcher(mailbox, {}), []
    for uid in read:  # one at a time, because a single header may be large
        raw = (await fetcher.bodies([uid], header_only=True)).get(uid)
        line = _line_of(raw) if raw else _("a mail that the server does not hand out")
        if not raw or words.casefold() in line.casefold():
            lines.append(line)
    last = (read if words else uids)[-1:] or [int(seen)]
    return FolderNews(lines, len(lines) if words else len(uids), f"{validity}:{last[0]}")


def _line_of(raw: bytes) -> str:
    headers = headers_of(raw)
    sender = one_line(decoded_header((headers.first("from") or "")[:1_000]), _CHARS)
    subject = one_line(headers.subject(), _CHARS)
    return f"{sender or _('(unknown sender)')}: {subject or _('(without a subject)')}"
