"""The mail server process: submission, control and, without Dovecot, the mail store.

`... devservers.mailhost.main CONFIG.json`; the keys are those of `Configuration`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from devservers.mailhost.control import Control
from devservers.mailhost.delivery import Delivery, LmtpDelivery
from devservers.mailhost.faults import FaultPlan
from devservers.mailhost.pymap_store import PymapStore
from devservers.mailhost.submission import Submission, server_context


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the starting process decided. `imap_port` 0 means that Dovecot is the store."""

    domain: str
    users: dict[str, str]
    certificate: str
    key: str
    token: str
    control_port: int
    smtp_port: int
    smtps_port: int
    lmtp_port: int
    imap_port: int


async def serve(configuration: Configuration) -> None:
    """Open all ports and serve until killed."""
    users = dict(configuration.users)
    faults = FaultPlan()
    context = server_context(configuration.certificate, configuration.key)
    delivery: Delivery = LmtpDelivery(configuration.lmtp_port)
    store: PymapStore | None = None
    servers: list[asyncio.Server] = []
    if configuration.imap_port:
        delivery = store = PymapStore(configuration.domain)
        for name, password in users.items():
            await store.add_user(name, password)
        servers.append(await store.listen_imap(configuration.imap_port, context))
        servers.append(await store.listen_lmtp(configuration.lmtp_port))

    async def add_user(name: str, password: str) -> None:
        users[name] = password
        if store is not None:
            await store.add_user(name, password)

    submission = Submission(configuration.domain, users, delivery, faults)
    servers.append(await submission.listen(configuration.smtp_port, context, implicit=False))
    servers.append(await submission.listen(configuration.smtps_port, context, implicit=True))
    # Last: who reaches the control port knows that all others are open.
    servers.append(await Control(configuration.token, faults, add_user).listen(configuration.control_port))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    # aiosmtpd warns about its own deprecations at every login.
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    asyncio.run(serve(Configuration(**json.loads(Path(sys.argv[1]).read_text()))))
