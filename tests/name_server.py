"""A DNS server on loopback that knows a few records, over UDP and TCP, and is silent or broken on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """
    ``asked`` has every name that was asked for; ``fail_next`` is how many questions get SERVFAIL.

    ``records`` by name and type are known besides the ``texts``.
    """

    def __init__(
        self, texts: dict[str, str], records: Mapping[tuple[str, str], Sequence[str]] | None = None
    ) -> None:
        self.texts = texts
        self.records = records or {}
        self.asked: list[str] = []
        self.fail_next = 0
        self.silent = False
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # one of datagrams, without saying so

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self.silent and self._transport is not None:
            self._transport.sendto(self._answer(data).to_wire(max_size=512, prefer_truncation=True), addr)

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int.from_bytes(await reader.readexactly(2), "big")
            wire = self._answer(await reader.readexactly(size)).to_wire()
            writer.write(len(wire).to_bytes(2, "big") + wire)
            await writer.drain()
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, data: bytes) -> dns.message.Message:
        question = dns.message.from_wire(data)
        answer = dns.message.make_response(question)
        name = question.question[0].name.to_text(omit_final_dot=True).lower()
        self.asked.append(name)
        text, kind = self.texts.get(name), dns.rdatatype.to_text(question.question[0].rdtype)
        if self.fail_next:
            self.fail_next -= 1
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif found := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", kind, *found))
        elif text is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        else:
            pieces = " ".join(f'"{text[at : at + 200]}"' for at in range(0, len(text), 200))
            answer.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "TXT", pieces.replace(";", "\\;")))
        return answer


@asynccontextmanager
async def name_server(
    texts: dict[str, str], records: Mapping[tuple[str, str], Sequence[str]] | None = None
) -> AsyncIterator[NameServer]:
    """Serve ``texts`` and ``records``."""
    server = NameServer(texts, records)
    streams = await asyncio.start_server(server.stream, "127.0.0.1", 0)
    server.port = streams.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", server.port))
    try:
        yield server
    finally:
        transport.close()
        streams.close()
        await asyncio.sleep(0)
