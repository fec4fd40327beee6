"""A person with a mail program, for the tests and the demo: smtplib, imaplib and nothing else.

Every call makes its own connections and closes them, so a peer survives restarts of the server. TLS is
always on and always checked against the given CA: without a context the standard library accepts any
certificate.
"""

from __future__ import annotations

import contextlib
import email
import email.policy
import imaplib
import re
import smtplib
import ssl
import time
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import TYPE_CHECKING

from devservers.errors import DevServerError, WaitedInVain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

POLL_S = 0.25
TIMEOUT_S = 30.0


class MailPeer:
    """One mailbox and the right to send from it."""

    def __init__(
        self,
        address: str,
        password: str,
        *,
        imap_port: int,
        smtp_port: int,
        ca_file: Path,
        host: str = "127.0.0.1",
    ) -> None:
        """Remember how to connect; nothing is connected yet."""
        self.address = address
        self.password = password
        self._host = host
        self._imap_port = imap_port
        self._smtp_port = smtp_port
        self.tls = ssl.create_default_context(cafile=str(ca_file))

    def send(
        self,
        to: str,
        subject: str,
        text: str,
        *,
        in_reply_to: str | None = None,
        references: str | Sequence[str] | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        attachments: Sequence[tuple[str, str, bytes]] = (),
    ) -> str:
        """Write and submit a mail; attachments are (file name, media type, content). Gives the Message-ID."""
        message = EmailMessage(policy=email.policy.SMTP)
        message["From"] = self.address
        message["To"] = to
        message["Subject"] = subject
        message["Date"] = formatdate(usegmt=True)
        message["Message-ID"] = message_id or make_msgid(domain="peer.test")
        if in_reply_to is not None:
            message["In-Reply-To"] = in_reply_to
        if references is not None:
            message["References"] = references if isinstance(references, str) else " ".join(references)
        for name, value in (headers or {}).items():
            message[name] = value
        message.set_content(text)
        for name, media_type, content in attachments:
            main, _, sub = media_type.partition("/")
            message.add_attachment(content, maintype=main, subtype=sub, filename=name)
        self.submit([to], message.as_bytes())
        return str(message["Message-ID"])

    def submit(self, recipients: Sequence[str], raw: bytes, *, sender: str | None = None) -> None:
        """Submit bytes as they are: STARTTLS, AUTH, MAIL, RCPT, DATA."""
        with smtplib.SMTP(self._host, self._smtp_port, local_hostname="localhost", timeout=TIMEOUT_S) as smtp:
            smtp.starttls(context=self.tls)
            smtp.login(self.address, self.password)
            smtp.sendmail(self.address if sender is None else sender, list(recipients), raw)

    def raw_list(self, folder: str = "INBOX") -> list[bytes]:
        """
        Read every message of a folder, in the order of arrival, without marking any as seen.

        UIDs do not tell that order: of two mails that Dovecot gets at the same time, one may have to wait for
        its UID until somebody looks, behind mails that came seconds later.
        """
        with self.imap() as imap:
            status, _ = imap.select(_quoted(folder), readonly=True)
            if status != "OK":
                return []
            _, answer = imap.uid("SEARCH", "ALL")
            uids = (answer[0] or b"").split()
            if not uids:
                return []
            _, parts = imap.uid("FETCH", b",".join(uids).decode(), "(INTERNALDATE BODY.PEEK[])")
            found = [part for part in parts if isinstance(part, tuple)]
            return [bytes(raw) for _, raw in sorted(found, key=lambda part: _arrival(part[0]))]

    def flags(self, folder: str = "INBOX") -> list[str]:
        """Read the flags of every message of a folder, oldest first, as the server writes them."""
        with self.imap() as imap:
            status, _ = imap.select(_quoted(folder), readonly=True)
            if status != "OK":
                return []
            _, parts = imap.fetch("1:*", "(FLAGS)")
            found = [re.search(rb"FLAGS \(([^)]*)\)", part) for part in parts if isinstance(part, bytes)]
            return [match[1].decode() for match in found if match]

    def folders(self) -> list[str]:
        """Name all folders."""
        with self.imap() as imap:
            _, lines = imap.list()
            texts = [line.decode() for line in lines if isinstance(line, bytes)]
        return [
            text.rpartition(' "')[2].rstrip('"') if text.endswith('"') else text.rpartition(" ")[2]
            for text in texts
        ]

    def wait_for(
        self,
        predicate: Callable[[EmailMessage], bool],
        timeout_s: float = TIMEOUT_S,
        *,
        folder: str = "INBOX",
    ) -> EmailMessage:
        """Wait for a message that fits; the oldest one counts. A server that is away is waited for, too."""
        deadline = time.monotonic() + timeout_s
        seen: list[EmailMessage] = []
        trouble: Exception | None = None
        while True:
            try:
                seen = self.list(folder)
                trouble = None
            except (OSError, imaplib.IMAP4.error) as error:
                trouble = error
            for message in seen:
                if predicate(message):
                    return message
            if time.monotonic() > deadline:
                subjects = [str(message["Subject"]) for message in seen]
                raise WaitedInVain(
                    f"no such mail within {timeout_s} s; {folder} has {subjects}; trouble: {trouble!r}"
                )
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def imap(self) -> Iterator[imaplib.IMAP4_SSL]:
        """Give a logged-in connection, for what the methods here do not cover."""
        imap = imaplib.IMAP4_SSL(self._host, self._imap_port, ssl_context=self.tls, timeout=TIMEOUT_S)
        try:
            imap.login(self.address, self.password)
            yield imap
        finally:
            try:
                imap.logout()
            except (OSError, imaplib.IMAP4.error):
                imap.shutdown()

    # Below all annotations that mean the built-in of the same name.
    def list(self, folder: str = "INBOX") -> list[EmailMessage]:
        """Read every message of a folder, parsed."""
        return [_parsed(raw) for raw in self.raw_list(folder)]


def text_of(message: EmailMessage) -> str:
    """Give the plain text of a mail, with LF line ends."""
    part = message.get_body(("plain",))
    if part is None:
        return ""
    return str(part.get_content()).replace("\r\n", "\n")


def _arrival(described: bytes) -> float:
    """When a fetched mail came, in whole seconds; 0 where the server does not say it before the text."""
    told = imaplib.Internaldate2tuple(described)
    return time.mktime(told) if told is not None else 0.0


def _parsed(raw: bytes) -> EmailMessage:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    if not isinstance(message, EmailMessage):
        raise DevServerError("the default policy gave an old-style message")
    return message


def _quoted(folder: str) -> str:
    escaped = folder.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
