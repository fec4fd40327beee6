"""A submission server: takes mail from its own users, for its own users.

One `Submission` serves two ports: STARTTLS and implicit TLS. It is strict where real providers are
strict: no mail without a login, nobody may use another's envelope or From address, an unknown recipient
is refused at RCPT. A plus tag never matters for who somebody is. Messages that pass get our verdict on
top (see `headers.py`) and are delivered before the client hears 250, so "accepted" means "in the
mailbox".

Faults (see `faults.py`) are looked up at each step. Dropping the connection is done with `abort`: the
client sees a reset, not a reply.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
import ssl
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from devservers.mailhost import headers
from devservers.mailhost.faults import Attempt, Fault, FaultPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from devservers.mailhost.delivery import Delivery

MAX_BYTES = 50_000_000
NOT_YOURS = "550 5.7.1 Not your address"
#: How aiosmtpd may give the sender of a bounce. It must be kept as "<>" there: "" counts as no MAIL command.
EMPTY = ("", "<>", None)


class Submission:
    """The rules of the server. aiosmtpd finds the `handle_*` methods by their names."""

    def __init__(self, domain: str, users: dict[str, str], delivery: Delivery, faults: FaultPlan) -> None:
        """Take the shared table of users: it may grow while we run."""
        self._domain = domain
        self._users = users
        self._delivery = delivery
        self._faults = faults

    async def listen(self, port: int, context: ssl.SSLContext, *, implicit: bool) -> asyncio.Server:
        """Open one port."""
        smtp = importlib.import_module("aiosmtpd.smtp").SMTP
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.BaseProtocol:
            # aiosmtpd does not see that a connection began with TLS, so there AUTH is allowed "without" it.
            made: asyncio.BaseProtocol = smtp(
                self,
                hostname=self._domain,
                ident="squidbot development server",
                tls_context=None if implicit else context,
                require_starttls=not implicit,
                auth_required=True,
                auth_require_tls=not implicit,
                authenticator=self.authenticate,
                data_size_limit=MAX_BYTES,
                loop=loop,
            )
            return made

        return await loop.create_server(protocol, "127.0.0.1", port, ssl=context if implicit else None)

    def authenticate(self, _server: Any, session: Any, _envelope: Any, _mechanism: str, given: Any) -> Any:
        """Check a login: `bot` and `bot@domain` are the same user."""
        result = importlib.import_module("aiosmtpd.smtp").AuthResult
        user = self._user_or_none(bytes(given.login).decode(errors="replace"))
        password = bytes(given.password).decode(errors="replace")
        sender = f"{user}@{self._domain}"
        # Clients try one mechanism after another; a refusal is one, and lasts, for the whole connection.
        refusal: str | None = getattr(session, "squidbot_refusal", None)
        if refusal is None and (fault := self._faults.take_or_none(Fault.REFUSE_AUTH, sender)):
            refusal = session.squidbot_refusal = self._note("auth", sender, [], fault.reply)
        if refusal is not None:
            return result(success=False, handled=False, message=refusal)
        if user is None or self._users[user] != password:
            return result(success=False, handled=False)
        session.squidbot_sender = sender
        return result(success=True, auth_data=given)

    async def handle_MAIL(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, session: Any, envelope: Any, address: str | None, options: Sequence[str]
    ) -> str:
        """Accept the user's own envelope sender, or the empty one."""
        sender: str = session.squidbot_sender
        fault = self._faults.take_or_none(Fault.REFUSE_MAIL, sender)
        if fault is not None:
            return self._note("mail", sender, [], fault.reply)
        if address not in EMPTY and headers.mailbox_of(address) != sender:
            return self._note("mail", sender, [], NOT_YOURS)
        envelope.mail_from = address or "<>"
        envelope.mail_options.extend(options)
        return "250 2.1.0 OK"

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: Any, session: Any, envelope: Any, address: str, options: Sequence[str]
    ) -> str:
        """Accept recipients that have a mailbox here."""
        sender: str = session.squidbot_sender
        fault = self._faults.take_or_none(Fault.REFUSE_RCPT, sender)
        if fault is not None:
            return self._note("rcpt", sender, [address], fault.reply)
        local, _, domain = headers.mailbox_of(address).rpartition("@")
        if domain != self._domain:
            return self._note("rcpt", sender, [address], "550 5.7.1 Relaying denied")
        if local not in self._users:
            return self._note("rcpt", sender, [address], "550 5.1.1 User unknown")
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Check the From field, add the verdict, deliver to every recipient, then accept."""
        sender: str = session.squidbot_sender
        recipients: list[str] = list(envelope.rcpt_tos)
        raw = bytes(envelope.content)
        fault = self._faults.take_or_none(Fault.REFUSE_DATA, sender)
        if fault is not None:
            return self._note("data", sender, recipients, fault.reply)
        if self._faults.take_or_none(Fault.DROP_BEFORE_DELIVERY, sender):
            self._note("data", sender, recipients, "dropped before delivery")
            await _drop(server)
        claimed = headers.from_addresses(raw)
        if len(claimed) != 1 or headers.mailbox_of(claimed[0]) != sender:
            return self._note("data", sender, recipients, NOT_YOURS)
        if self._faults.take_or_none(Fault.OWN_MESSAGE_ID, sender):
            raw = headers.with_message_id(raw, f"<{secrets.token_hex(20)}-000000@eu-west-1.amazonses.com>")
        reverse_path = "" if envelope.mail_from in EMPTY else envelope.mail_from
        # Whoever hangs up now has still handed the mail over, to all of its recipients or to none.
        refused = await asyncio.shield(self._deliver_all(reverse_path, recipients, self._sealed(raw)))
        if refused:
            return self._note("data", sender, recipients, refused)
        if self._faults.take_or_none(Fault.DROP_AFTER_DELIVERY, sender):
            self._note("data", sender, recipients, "dropped after delivery")
            await _drop(server)
        return self._note("data", sender, recipients, "250 2.0.0 Delivered")

    def _sealed(self, raw: bytes) -> bytes:
        received = f"Received: from localhost by {self._domain} with ESMTPSA; {formatdate(usegmt=True)}\r\n"
        cleaned = received.encode() + headers.without_results_of(raw, self._domain)
        return headers.with_results(cleaned, self._domain, self._domain)

    async def _deliver_all(self, sender: str, recipients: list[str], raw: bytes) -> str:
        """Deliver to each; give the reply of the first failure, or nothing."""
        for recipient in recipients:
            try:
                await self._delivery.deliver(sender, recipient, raw)
            except Exception as error:  # noqa: BLE001 - whatever the store says is a temporary failure to the client
                print(f"delivery to {recipient} failed: {error!r}", flush=True)
                return "451 4.3.0 The mail store did not take it"
        return ""

    def _user_or_none(self, login: str) -> str | None:
        local, _, domain = login.lower().partition("@")
        return local if local in self._users and domain in ("", self._domain) else None

    def _note(self, step: str, sender: str, recipients: list[str], reply: str) -> str:
        self._faults.attempts.append(Attempt(step, sender, recipients, reply))
        return reply


async def _drop(server: Any) -> None:
    """Reset the connection; the task that serves it is cancelled while we wait here."""
    server.transport.abort()
    await asyncio.sleep(60)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Make the TLS settings that all listeners share."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
