"""
The floor for the email benchmark: an echo bot on bare aioimaplib and aiosmtplib, written the usual way.

IDLE, search what is new, fetch, answer, idle again; no inbox, no order, no evidence, no care. Whatever
squidbot's channel adds to this is the price of its promises. Run it as a process of its own, beside the channel
it is compared with::

    python -m tests.bench.echo_email --host 127.0.0.1 --imap-port P --smtp-port P --ca-file FILE
        --username bot --password pw --address bot@mail.test

It prints ``ready`` when it listens and ends with SIGTERM. It is no model to copy: see the traps that
``channels/email/imap/imap_protocol.py`` lists.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import email
import signal
import ssl
import sys
from collections.abc import Sequence
from email.message import EmailMessage, Message
from email.utils import formatdate, make_msgid, parseaddr

import aiosmtplib
from aioimaplib import aioimaplib


async def echo(arguments: argparse.Namespace) -> None:
    """Answer every new mail with ``echo: <text>`` until cancelled."""
    context = ssl.create_default_context(cafile=arguments.ca_file)
    imap = aioimaplib.IMAP4_SSL(arguments.host, arguments.imap_port, ssl_context=context)
    await imap.wait_hello_from_server()
    await imap.login(arguments.username, arguments.password)
    await imap.select("INBOX")
    last = max(await _search(imap, "UID 1:*"), default=0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        while True:
            idle = await imap.idle_start(timeout=60)
            await imap.wait_server_push()
            imap.idle_done()
            await asyncio.wait_for(idle, 10)
            for uid in [uid for uid in await _search(imap, f"UID {last + 1}:*") if uid > last]:
                last = uid
                fetched = await imap.uid("fetch", str(uid), "(BODY.PEEK[])")
                mail = email.message_from_bytes(bytes(fetched.lines[1]))
                if arguments.concurrent:
                    _keep(asyncio.ensure_future(_answer(arguments, context, mail)))
                else:
                    await _answer(arguments, context, mail)
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(imap.logout(), 2)


_running: set[asyncio.Future[None]] = set()


def _keep(task: asyncio.Future[None]) -> None:
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _search(imap: aioimaplib.IMAP4_SSL, criteria: str) -> list[int]:
    found = await imap.uid_search(criteria, charset=None)
    return [int(word) for word in found.lines[0].split()] if found.lines else []


async def _answer(arguments: argparse.Namespace, context: ssl.SSLContext, mail: Message) -> None:
    sender = parseaddr(mail["From"] or "")[1]
    if sender == arguments.address:
        return
    answer = EmailMessage()
    answer["From"] = arguments.address
    answer["To"] = sender
    answer["Subject"] = f"Re: {mail['Subject']}"
    answer["Date"] = formatdate()
    answer["Message-ID"] = make_msgid(domain="echo.test")
    answer["In-Reply-To"] = str(mail["Message-ID"])
    answer["References"] = str(mail["Message-ID"])
    body = mail.get_payload(decode=True)
    answer.set_content(f"echo: {body.decode(errors='replace') if isinstance(body, bytes) else ''}")
    await aiosmtplib.send(
        answer,
        hostname=arguments.host,
        port=arguments.smtp_port,
        username=arguments.username,
        password=arguments.password,
        start_tls=True,
        tls_context=context,
        local_hostname="localhost",
    )


async def _until_told(arguments: argparse.Namespace) -> None:
    task = asyncio.ensure_future(echo(arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--imap-port", type=int, required=True)
    parser.add_argument("--smtp-port", type=int, required=True)
    parser.add_argument("--ca-file", required=True)
    parser.add_argument("--username", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--concurrent", action="store_true", help="answer without waiting for the one before")
    asyncio.run(_until_told(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
