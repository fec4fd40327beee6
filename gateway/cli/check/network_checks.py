"""
Checks each server before any login: its name in DNS, the connection, the certificate, and its clock. A login
that fails says one thing for all of these. Here each step is taken alone, so that a person knows whom to ask.
Nothing is said to a server but what its protocol begins with, and no credentials.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from channels.plugin import Server, Way
from gateway.cli.check.check_report import Finding, FindingLevel
from gateway.plugins import channel_kinds
from gateway.settings import Settings

_LIMIT_S = 15.0
_SKEW = (
    "reminders and check-ins come at wrong times, certificates and tokens seem to be expired or not valid "
    "yet, signed mail is refused, and homeservers sort messages wrongly"
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a check; ``ahead_s`` is how far our clock is ahead of the server's, if known."""

    finding: Finding
    ahead_s: float | None = None

    @property
    def has_failed(self) -> bool:
        """Return True if a login at this server is useless."""
        return self.finding.verdict is FindingLevel.FAILED


def configured_servers(settings: Settings) -> Iterator[Server]:
    """Every server that the settings name."""
    kinds = settings.channels.kinds()
    for name, config in settings.channels.enabled().items():
        for server in channel_kinds()[kinds[name]].servers(config):
            yield replace(server, part=f"{name} {server.part}", account=name)
    for name, provider in settings.llm.providers.items():
        if provider.api_base:
            yield Server.from_url(f"provider {name}", provider.api_base, "/models")


async def probe_server(
    server: Server, *, now: Callable[[], datetime], limit_s: float = _LIMIT_S
) -> ProbeResult:
    """Check a server step by step, as far as it goes."""
    if server.path and not server.account and _by_proxy(server):
        told = "is reached through the proxy of the environment; the check cannot see beyond it"
        return ProbeResult(Finding(server.part, FindingLevel.SKIPPED, f"{server.host} {told}"))
    where = f"{server.host}:{server.port}"
    try:
        with anyio.fail_after(limit_s):
            address = await _resolved(server)
            async with await anyio.connect_tcp(address, server.port) as stream:
                secure = await _secured(stream, server)
                ahead_s = await _ahead_s(secure, server, now) if server.path else None
    except Exception as error:
        said = _explained(error, server)
        if said is None:
            raise
        return ProbeResult(Finding(server.part, FindingLevel.FAILED, f"{where}: {said[0]}", said[1]))
    sure = "" if server.way == "plain" else ", with a valid certificate"
    return ProbeResult(Finding(server.part, FindingLevel.OK, f"{where} answers{sure}"), ahead_s)


def clock_finding(reached: list[tuple[str, float]]) -> Finding:
    """Compare the clocks: ``(part, ahead_s)`` of each server that reported the time. The nearest counts."""
    if not reached:
        return Finding("clock", FindingLevel.SKIPPED, "no server that reports the time was reached")
    part, ahead_s = min(reached, key=lambda one: abs(one[1]))
    if abs(ahead_s) <= 60.0:
        return Finding("clock", FindingLevel.OK, f"agrees with {part}")
    direction = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        "clock",
        FindingLevel.WARNING,
        f"this machine's clock is {abs(ahead_s):.0f} s {direction} that of {part}: {_SKEW}",
        "synchronise the clock with the network: timedatectl set-ntp true (or install chrony)",
    )


def _by_proxy(server: Server) -> bool:
    name = "https_proxy" if server.way == "tls" else "http_proxy"
    return server.host not in ("localhost", "127.0.0.1", "::1") and any(
        os.environ.get(each) for each in (name, name.upper(), "all_proxy", "ALL_PROXY")
    )


async def _resolved(server: Server) -> str:
    found = await anyio.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    if len({one[4][0] for one in found}) == 1:
        return str(found[0][4][0])
    return server.host  # anyio tries all of them


async def _secured(stream: ByteStream, server: Server) -> ByteStream:
    if server.way == "plain":
        return stream
    context = await anyio.to_thread.run_sync(_context, server.ca_file)
    if server.way != "tls":
        await _starttls(stream, server.way)
    return await TLSStream.wrap(
        stream, hostname=server.host, ssl_context=context, server_side=False, standard_compatible=False
    )


def _context(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _CaUnusable(f"tls_ca_file {ca_file} cannot be used: {error}") from error
    return context


class _CaUnusable(Exception):
    """The file with one's own authority is of no use."""


class _NoStartTls(Exception):
    """The server does not begin TLS."""


async def _starttls(stream: ByteStream, way: Way) -> None:
    await _until(stream, lambda text: text.endswith(b"\r\n"))
    if way == "smtp":
        await stream.send(b"EHLO squidbot.invalid\r\n")
        await _until(stream, lambda text: any(line[3:4] == b" " for line in text.splitlines()))
        await stream.send(b"STARTTLS\r\n")
        answer = await _until(stream, lambda text: text.endswith(b"\r\n"))
        good = answer.startswith(b"220")
    else:
        await stream.send(b"a STARTTLS\r\n")
        answer = await _until(stream, lambda text: any(line.startswith(b"a ") for line in text.splitlines()))
        good = any(line.upper().startswith(b"A OK") for line in answer.splitlines())
    if not good:
        raise _NoStartTls(answer.decode("ascii", "replace").strip()[:100])


async def _until(stream: ByteStream, done: Callable[[bytes], bool]) -> bytes:
    text = b""
    while not done(text) and len(text) < 16_384:
        text += await stream.receive()
    return text


async def _ahead_s(stream: ByteStream, server: Server, now: Callable[[], datetime]) -> float | None:
    """Return how far our clock is ahead by the Date of an answer (RFC 9110, section 6.6.1), or None."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    head = f"GET {server.path} HTTP/1.1\r\nHost: {host}:{server.port}\r\nUser-Agent: squidbot\r\n"
    await stream.send(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode())
    text = b""
    try:
        text = await _until(stream, lambda read: b"\r\n\r\n" in read)
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return None  # it took the connection, which is what was asked
    for line in text.split(b"\r\n\r\n")[0].decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "date":
            try:
                return (now() - parsedate_to_datetime(value.strip())).total_seconds()
            except (TypeError, ValueError):
                return None
    return None


def _explained(error: Exception, server: Server) -> tuple[str, str] | None:  # noqa: C901, PLR0911 - one per trouble
    """Return the cause and the remedy; None for a defect of ours."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else None
    if isinstance(error, ssl.SSLError):
        return _tls_explained(error, server)
    if isinstance(error, anyio.BrokenResourceError) and isinstance(cause, ssl.SSLError):
        return _tls_explained(cause, server)
    match error:
        case socket.gaierror():
            if error.errno == socket.EAI_AGAIN:
                return "its name cannot be looked up at the moment", (
                    "is this machine online? /etc/resolv.conf names its DNS servers"
                )
            return (
                "its name is not known (DNS)",
                "is it spelled right? Does `getent hosts " + server.host + "` know it?",
            )
        case TimeoutError():
            return "it does not answer", "is a firewall in between? Are address and port right?"
        case _NoStartTls():
            return (
                f"it does not begin TLS when asked ({error})",
                "try security: tls with the port for it (993, 465)",
            )
        case _CaUnusable():
            return str(error), "it must be a readable file of certificates (PEM)"
        case anyio.EndOfStream() | anyio.BrokenResourceError() | ConnectionResetError():
            return "it closed the connection at once", "do port and security match?"
        case OSError():
            if isinstance(cause, Exception):
                return _explained(cause, server)
            return _not_connected(error)
    return None


def _not_connected(error: OSError) -> tuple[str, str]:
    match error.errno:
        case errno.ECONNREFUSED:
            return (
                "it refuses the connection: nothing listens there",
                "is the server running? Is the port right?",
            )
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            return "there is no route to it from here", "is this machine online? Does it need IPv6, or a VPN?"
        case errno.ETIMEDOUT:
            return "it does not answer", "is a firewall in between? Are address and port right?"
        case _:
            return f"it cannot be reached: {error.strerror or error}", "is this machine online?"


_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL")


def _tls_explained(error: ssl.SSLError, server: Server) -> tuple[str, str]:
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in _NOT_TLS:
            return (
                "it does not speak TLS on this port",
                "are port and security (or http and https) right?",
            )
        return f"TLS failed: {error.reason or error}", "the server's log may say more"
    match error.verify_code:
        case 10:
            return "its certificate has expired", "its operator must renew it; is this machine's clock right?"
        case 9:
            return "its certificate is not valid yet", "is this machine's clock right?"
        case 62 | 64:
            return f"its certificate is for another name than {server.host}", (
                "write the name that the certificate is for"
            )
        case _:
            return (
                f"its certificate is signed by no authority that this machine trusts ({error.verify_message})"
            ), (
                (
                    "if the authority is your own, name its certificate in tls_ca_file; if not, "
                    "somebody may be intercepting the connection"
                )
                if server.account
                else (
                    "if the authority is your own, add it to the system's; if not, somebody may "
                    "be intercepting the connection"
                )
            )
