"""
A Dovecot of a test's own, with whatever settings it needs: namespaces, rights, quotas, tokens, STARTTLS.

It takes a moment to start, so there is one for each set of settings. Submission is not part of it.
"""

from __future__ import annotations

import smtplib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from channels.email.config import EmailConfig
from devservers import MailPeer, dovecot
from devservers.environment import cache_folder
from devservers.ports import lease_ports

USER = "bot"
PASSWORD = "bot-pw"


@dataclass
class OwnDovecot:
    """``imap_port`` is for TLS from the start, ``plain_port`` for STARTTLS; certificates are in ``folder``."""

    server: dovecot.Dovecot
    folder: Path
    imap_port: int
    plain_port: int
    lmtp_port: int

    @property
    def peer(self) -> MailPeer:
        return MailPeer(
            "bot@mail.test", PASSWORD, imap_port=self.imap_port, smtp_port=1, ca_file=self.folder / "ca.pem"
        )

    def inject(self, raw: bytes, *, to: str = "bot@mail.test") -> None:
        with smtplib.LMTP("127.0.0.1", self.lmtp_port, local_hostname="localhost", timeout=60) as lmtp:
            lmtp.sendmail("alice@mail.test", [to], raw)

    def log(self) -> str:
        return self.server.log.read_text(errors="replace")

    def config(self, **changes: Any) -> EmailConfig:
        return EmailConfig.model_validate(
            {
                "address": "bot@mail.test",
                "username": USER,
                "password": PASSWORD,
                "imap": {"host": "127.0.0.1", "port": self.imap_port},
                "smtp": {"host": "127.0.0.1", "port": 1, "security": "tls"},
                "tls_ca_file": str(self.folder / "ca.pem"),
                "sender_verification": "off",
                "sent_copy": "server",
            }
            | changes
        )


@contextmanager
def own_dovecot(folder: Path, more: str = "", files: Mapping[str, str] | None = None) -> Iterator[OwnDovecot]:
    """Start one with ``more`` settings and ``files`` in its own folder, which is ``FOLDER`` in all of them."""
    installed = dovecot.find_or_none()
    if installed is None or installed.version >= (2, 4, 0):
        pytest.skip("needs Dovecot 2.3, in whose language the settings of this test are written")
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "server.key"))
    (folder / "server.pem").unlink(missing_ok=True)
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(str(folder / "server.pem"), append=True)
    leases = lease_ports(3, cache_folder() / "ports")
    imap, plain, lmtp = (lease.port for lease in leases)
    server = dovecot.Dovecot(installed, tls=folder, imap_port=imap, lmtp_port=lmtp, domain="mail.test")
    server.write_users({USER: PASSWORD})
    with (server.folder / "dovecot.conf").open("a") as config:
        config.write(f"service imap-login {{\n  inet_listener imap {{\n    port = {plain}\n  }}\n}}\n")
        config.write(more.replace("FOLDER", str(server.folder)))
    for name, text in (files or {}).items():
        path = server.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("FOLDER", str(server.folder)))
    try:
        server.launch(say=print, limit_s=60)
        yield OwnDovecot(server, folder, imap, plain, lmtp)
    finally:
        server.remove()
        for lease in leases:
            lease.release()
