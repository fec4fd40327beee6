"""The proxy of a command without a sandbox around the command: which addresses are tried, which names asked for."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from ipaddress import ip_network

import anyio
import pytest

from agent_core.tools.shell.proxy import CommandProxy, ProxyLimits
from agent_core.tools.web.ip_rules import AddressReach

HERE = AddressReach(allow_private=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


class Names:
    """A table of names; it notes how many are asked for at once."""

    def __init__(self, table, wait=None):
        self.table, self.wait, self.asked, self.now, self.most = table, wait, [], 0, 0

    async def resolve(self, host, port=0, family=socket.AF_UNSPEC):
        self.asked.append(host)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.wait is not None:
                await self.wait.wait()
            found = self.table(host)
            return [
                {"family": socket.AF_INET6 if ":" in each else socket.AF_INET, "host": each} for each in found
            ]
        finally:
            self.now -= 1


@asynccontextmanager
async def served(names, *, hosts, limits=ProxyLimits()):  # noqa: B008 - a frozen value
    async def opened(_host):
        pass

    one = CommandProxy(hosts, HERE, names, opened, limits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.serve, listener)
            yield one, listener.getsockname()[1]
            tasks.cancel_scope.cancel()


async def asked(proxy, host, port):
    """What comes back for one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
    writer.write(f"GET http://{host}:{port}/ HTTP/1.1\r\n\r\n".encode())
    said = await reader.read()
    writer.close()
    return said.decode()


@asynccontextmanager
async def site(host="127.0.0.1"):
    heads = []

    async def answer(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, host, 0) as server:
        yield server.sockets[0].getsockname()[1], heads


@pytest.mark.parametrize(
    ("addresses", "reached"),
    [
        (["127.0.0.1"], True),
        (["127.0.0.9", "127.0.0.1"], True),
        (["::1", "127.0.0.1"], True),
        (["10.0.0.1", "127.0.0.9", "127.0.0.1"], True),
        ([*[f"::1%{number}" for number in range(9)], "127.0.0.1"], True),
        (["127.0.0.9", "127.0.0.8"], False),
        ([*[f"127.0.0.{number}" for number in range(2, 9)], "127.0.0.1"], False),
    ],
)
async def test_the_next_address_is_tried_where_one_does_not_answer(addresses, reached):
    """A few of them, both kinds by turns. Only one of these has a listener."""
    async with (
        site() as (port, heads),
        served(Names(lambda _: addresses), hosts=["data.example"]) as (one, at),
    ):
        said = await asked(at, "data.example", port)
    assert said.endswith("ok") is reached
    assert len(heads) == reached
    assert [each.refused for each in one.made] == ["" if reached else "it cannot be reached now"]


async def test_an_address_that_is_silent_leaves_time_for_the_next():
    """Its listener takes no more connections, as one behind a filter that drops everything."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.9", 0))
        port = deaf.getsockname()[1]
        deaf.listen(0)
        held = []
        for _ in range(8):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.9", port))
            held.append(waiting)
        heads = []

        async def answer(reader, writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            writer.close()

        async with (
            await asyncio.start_server(answer, "127.0.0.1", port),
            served(
                Names(lambda _: ["127.0.0.9", "127.0.0.1"]),
                hosts=["data.example"],
                limits=ProxyLimits(connect_s=1.0),
            ) as (_, at),
        ):
            assert (await asked(at, "data.example", port)).endswith("ok")
        for each in held:
            each.close()
    assert len(heads) == 1


async def test_so_many_names_are_looked_up_and_no_more():
    """A name that somebody made up is told to a name server. The same one may be asked for again."""
    names = Names(lambda _: ["127.0.0.1"])
    limits = ProxyLimits(names=3)
    async with site() as (port, heads), served(names, hosts=["*.data.example"], limits=limits) as (one, at):
        for number in (1, 2, 3, 4, 5, 1):
            await asked(at, f"word{number}.data.example", port)
    assert names.asked == [f"word{number}.data.example" for number in (1, 2, 3, 1)]
    assert [each.refused for each in one.made] == ["", "", "", "too many names", "too many names", ""]
    assert len(heads) == 4


async def test_a_few_names_are_looked_up_at_once():
    go = anyio.Event()
    names = Names(lambda _: ["127.0.0.1"], wait=go)
    limits = ProxyLimits(lookups=2)
    async with site() as (port, heads), served(names, hosts=["*.data.example"], limits=limits) as (one, at):
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(asked, at, f"word{number}.data.example", port)
            while len(one.made) < 6 or names.now < 2:
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            assert names.now == 2
            go.set()
    assert names.most == 2
    assert len(heads) == 6
