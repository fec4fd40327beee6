"""
The network of the shell: listed hosts by the proxy, and nothing else, whatever a command tries.

The servers stand on loopback, which the proxy is allowed here as a private network; names are looked up in a table.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shlex
import socket
import ssl
import sys
import textwrap
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network

import anyio
import pytest
import trustme

from agent_core.children import bubblewrap
from agent_core.tools.shell.proxy import CommandProxy, ProxyLimits
from agent_core.tools.web.ip_rules import AddressReach

from .conftest import proved, sandbox_in

pytestmark = [
    pytest.mark.skipif(
        not bubblewrap.find_program() or platform.machine() not in ("x86_64", "aarch64"),
        reason="bubblewrap is not installed, or the machine is not known",
    ),
]
LOOPBACK = (ip_network("127.0.0.0/8"),)
AUTHORITY = trustme.CA()
HOST = "data.example"


class Names:
    """A table of names. A list of lists is a name that changes with each question."""

    def __init__(self, table):
        self.table, self.asked = table, []

    async def resolve(self, host, port=0, family=socket.AF_UNSPEC):
        self.asked.append(host)
        if host not in self.table:
            raise OSError("no such name")
        found = self.table[host]
        if isinstance(found[0], list):
            found = found.pop(0)
        return [{"family": socket.AF_INET, "host": each} for each in found]


class Site:
    """A server that notes the heads of requests; ``page`` is its answer. It may be deaf to ``Connection: close``."""

    def __init__(self):
        self.heads, self.page, self.port, self.is_deaf = [], b"a page", 0, False

    async def answer(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                body = int(
                    dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2]).get(b"Content-Length", 0)
                )
                await reader.readexactly(body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(self.page), self.page))
                await writer.drain()
                if b"Connection: close" in head and not self.is_deaf:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(answer, tls=None):
    """The port of a server, all of whose connections are closed in the end."""
    open_ones = []

    async def noted(reader, writer):
        open_ones.append((asyncio.current_task(), writer))
        try:
            await answer(reader, writer)
        except (asyncio.CancelledError, ConnectionError, ssl.SSLError):
            pass

    async with await asyncio.start_server(noted, "127.0.0.1", 0, ssl=tls) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for task, writer in open_ones:
                task.cancel()
                writer.close()
            for _, writer in open_ones:
                with suppress(OSError):
                    await writer.wait_closed()


@asynccontextmanager
async def site(tls=None):
    one = Site()
    async with listening(one.answer, tls) as one.port:
        yield one


def proxy(names, *, hosts=(HOST,), reach=None, limits=ProxyLimits(), opened=None):  # noqa: B008
    async def nothing(_host):
        pass

    return CommandProxy(
        hosts, reach or AddressReach(allow_private=LOOPBACK), names, opened or nothing, limits
    )


@pytest.fixture
async def sandbox(home):
    one = sandbox_in(home, backend="bubblewrap", connects=True)
    await proved(one)
    assert one.connects
    return one


def python(code, **given):
    words = [os.path.realpath(sys.executable), "-I", "-S", "-c", textwrap.dedent(code), json.dumps(given)]
    return shlex.join(words)


ASK = """
    import json, os, socket, ssl, sys
    given = json.loads(sys.argv[1])

    def proxied(text, then=b""):
        made = socket.create_connection(("127.0.0.1", 3128), 10)
        made.sendall(text.encode("latin-1") + then)
        said = b""
        while piece := made.recv(65536):
            said += piece
        return said.decode("latin-1")
"""


def asking(code, **given):
    return python(textwrap.dedent(ASK) + textwrap.dedent(code), **given)


async def test_a_listed_host_is_reached_by_http_and_by_tls_and_each_connection_is_noted(sandbox):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(HOST).configure_cert(theirs)
    names, heard = Names({HOST: ["127.0.0.1"]}), []

    async def opened(host):
        heard.append((host, len(plain.heads), len(secure.heads)))

    async with site() as plain, site(theirs) as secure:
        one = proxy(names, opened=opened)
        given = {"plain": plain.port, "secure": secure.port, "ca": AUTHORITY.cert_pem.bytes().decode()}
        command = asking(
            f"""
            import ssl, urllib.request
            trust = ssl.create_default_context(cadata=given["ca"])
            asked = [("http", given["plain"]), ("https", given["secure"])]
            for scheme, port in asked:
                opener = urllib.request.build_opener(urllib.request.ProxyHandler(), urllib.request.HTTPSHandler(context=trust))
                print(opener.open(f"{{scheme}}://{HOST}:{{port}}/a?b=c", b"body", 20).read().decode())
            """,
            **given,
        )
        outcome = await sandbox.run(command, seconds=30, serve=one.serve)
        assert outcome.head == b"a page\na page\n", outcome
        assert plain.heads[0].startswith(b"POST /a?b=c HTTP/1.1\r\nHost: data.example:%d\r\n" % plain.port)
        assert secure.heads[0].startswith(b"POST /a?b=c HTTP/1.1\r\n")
        assert [(each.host, each.port, each.refused) for each in one.made] == [
            (HOST, plain.port, ""),
            (HOST, secure.port, ""),
        ]
        assert all(each.sent > 100 and each.received > 40 for each in one.made)
        assert one.connections_line() == f"Connections: {HOST}:{plain.port}, {HOST}:{secure.port}"
        # Whose words come is known before one of them can.
        assert heard == [(HOST, 0, 0), (HOST, 1, 0)]


REFUSED = {
    "another host": ("CONNECT other.example:{port} HTTP/1.1\r\n\r\n", "not one of the hosts"),
    "its address": ("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n", "not one of the hosts"),
    "an address in another form": ("CONNECT 2130706433:{port} HTTP/1.1\r\n\r\n", "number"),
    "a page of another host": ("GET http://other.example:{port}/ HTTP/1.1\r\n\r\n", "not one of the hosts"),
    "a host below": ("GET http://a.data.example:{port}/ HTTP/1.1\r\n\r\n", "not one of the hosts"),
    "a host that ends alike": (
        "GET http://evildata.example:{port}/ HTTP/1.1\r\n\r\n",
        "not one of the hosts",
    ),
    "a user name": ("GET http://data.example@other.example:{port}/ HTTP/1.1\r\n\r\n", "only http"),
    "another port": ("CONNECT public.example:22 HTTP/1.1\r\n\r\n", "port 22"),
    "a private address": ("CONNECT inside.example:443 HTTP/1.1\r\n\r\n", "private network"),
    "the keys of a cloud": ("GET http://cloud.example/ HTTP/1.1\r\n\r\n", "machines their keys"),
    "no name": ("GET http://nowhere.example/ HTTP/1.1\r\n\r\n", "no such host"),
    "a path alone": ("GET / HTTP/1.1\r\nHost: data.example:{port}\r\n\r\n", "only http"),
    "two lengths": (
        "POST http://data.example:{port}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\nx",
        "length",
    ),
    "pieces": (
        "POST http://data.example:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Length",
    ),
    "a header in two lines": ("GET http://data.example:{port}/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "form"),
    "a tunnel for something else": (
        "CONNECT data.example:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "TLS",
    ),
    "no HTTP": ("\x16\x03\x01\r\n\r\n", "not an HTTP/1.1 request"),
}


@pytest.fixture
def names():
    return Names(
        {
            HOST: ["127.0.0.1"],
            "other.example": ["127.0.0.1"],
            "public.example": ["93.184.215.14"],
            "inside.example": ["10.0.0.7", "192.168.3.4"],
            "cloud.example": ["169.254.169.254"],
        }
    )


async def test_nothing_else_is_reached_by_the_proxy(sandbox, names):
    hosts = [HOST, "public.example", "inside.example", "cloud.example", "nowhere.example"]
    async with site() as one_site:
        asked = {name: text.format(port=one_site.port) for name, (text, _) in REFUSED.items()}
        asked["control"] = f"GET http://{HOST}:{one_site.port}/ HTTP/1.1\r\n\r\n"
        code = 'print(json.dumps({name: proxied(text) for name, text in given["asked"].items()}))'
        one = proxy(names, hosts=hosts)
        outcome = await sandbox.run(asking(code, asked=asked), seconds=60, serve=one.serve)
        answers = json.loads(outcome.head + outcome.tail)
        for name, (_, why) in REFUSED.items():
            assert why in answers[name], (name, answers[name])
            head, _, body = answers[name].rpartition("\r\n\r\n")
            assert (
                "HTTP/1.1 200 Connection established" in head
                or head.startswith("HTTP/1.1 4")
                or "502" in head
            )
            assert f"Content-Length: {len(body)}" in head
            assert body.startswith("squidbot's proxy: ")
        assert answers["control"].endswith("a page")
        assert len(one_site.heads) == 1
        assert len([each for each in one.made if each.refused]) == len(REFUSED)


async def test_the_host_is_that_of_the_address_and_nothing_goes_on_behind_the_first_request(sandbox, names):
    async with site() as one_site:
        first = f"POST http://{HOST}:{one_site.port}/a HTTP/1.1\r\nHost: hidden.example\r\nContent-Length: 2\r\n\r\nab"
        second = "GET /b HTTP/1.1\r\nHost: hidden.example\r\n\r\n"
        code = 'print(proxied(given["first"] + given["second"])[-6:])'
        one_site.is_deaf = True
        one = proxy(names, limits=ProxyLimits(silence_s=2))
        outcome = await sandbox.run(asking(code, first=first, second=second), seconds=30, serve=one.serve)
        assert outcome.head == b"a page\n", outcome
        assert [head.count(b"hidden") for head in one_site.heads] == [0]


async def test_a_tunnel_for_a_listed_host_does_not_lead_to_another_one_behind_its_address(sandbox, names):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(HOST, "hidden.example").configure_cert(theirs)
    code = """
        for name in ("hidden.example", None, given["host"]):
            made = socket.create_connection(("127.0.0.1", 3128), 10)
            made.sendall(f"CONNECT {given['host']}:{given['port']} HTTP/1.1\\r\\n\\r\\n".encode())
            made.recv(1000)
            trust = ssl._create_unverified_context()
            trust.check_hostname = False
            try:
                with trust.wrap_socket(made, server_hostname=name) as through:
                    through.sendall(f"GET /{name} HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n".encode())
                    print(through.recv(12).decode())
            except (ssl.SSLError, OSError):
                print("not")
    """
    async with site(theirs) as one_site:
        one = proxy(names)
        outcome = await sandbox.run(asking(code, host=HOST, port=one_site.port), seconds=30, serve=one.serve)
    assert outcome.head == b"not\nnot\nHTTP/1.1 200\n", outcome
    assert [head.split(b"\r\n")[0] for head in one_site.heads] == [b"GET /data.example HTTP/1.1"]
    assert [each.refused for each in one.made][:2] == [
        "the tunnel is used for another host",
        "a tunnel must name its host",
    ]


async def test_a_tunnel_to_a_listed_address_leads_to_no_host_that_shares_it(sandbox, names):
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1", "hidden.example").configure_cert(theirs)
    code = """
        for first in ("hidden.example", None, b"GET /plain HTTP/1.1\\r\\n\\r\\n"):
            made = socket.create_connection(("127.0.0.1", 3128), 10)
            made.sendall(f"CONNECT 127.0.0.1:{given['port']} HTTP/1.1\\r\\n\\r\\n".encode())
            made.recv(1000)
            trust = ssl._create_unverified_context()
            trust.check_hostname = False
            try:
                if isinstance(first, bytes):
                    made.sendall(first)
                    print(made.recv(12).decode())
                    continue
                with trust.wrap_socket(made, server_hostname=first) as through:
                    through.sendall(b"GET /through HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n")
                    print(through.recv(12).decode())
            except (ssl.SSLError, OSError):
                print("not")
    """
    async with site(theirs) as one_site:
        one = proxy(names, hosts=["127.0.0.1"])
        outcome = await sandbox.run(asking(code, port=one_site.port), seconds=30, serve=one.serve)
    assert outcome.head == b"not\nHTTP/1.1 200\nHTTP/1.1 403\n", outcome
    assert [head.split(b"\r\n")[0] for head in one_site.heads] == [b"GET /through HTTP/1.1"]
    assert [each.refused for each in one.made] == [
        "the tunnel is used for another host",
        "",
        "a tunnel is for TLS",
    ]


async def test_a_name_that_changes_between_two_looks_gains_nothing(sandbox):
    """It is looked up once for each connection, and what was checked is what is connected."""
    names = Names({HOST: [["10.0.0.1"], ["127.0.0.1"], ["10.0.0.1", "127.0.0.1"]]})
    async with site() as one_site:
        asked = f"GET http://{HOST}:{one_site.port}/ HTTP/1.1\r\n\r\n"
        code = 'print([proxied(given["asked"]).startswith("HTTP/1.1 200") for _ in range(3)])'
        one = proxy(names)
        outcome = await sandbox.run(asking(code, asked=asked), seconds=30, serve=one.serve)
    assert outcome.head == b"[False, True, True]\n", outcome
    assert len(one_site.heads) == 2
    assert names.asked == [HOST] * 3


DIRECT = """
    import socket
    given = json.loads(sys.argv[1])
    tries = {
        "the machine's loopback": lambda: socket.create_connection(("127.0.0.1", given["port"]), 5),
        "the machine's address": lambda: socket.create_connection((given["own"], given["port"]), 5),
        "the keys of a cloud": lambda: socket.create_connection(("169.254.169.254", 80), 5),
        "a public address": lambda: socket.create_connection(("192.0.2.1", 443), 5),
        "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "raw as a stream": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132),
        "IPv6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM),
        "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "local sockets": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "virtual machines": lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM),
        "the descriptor of the listener": lambda: socket.socket(fileno=61),
        "names": lambda: socket.getaddrinfo("data.example", 80),
        "a listener of its own": lambda: socket.create_server(("127.0.0.1", 0)),
    }
    said = {}
    for name in given.get("only", tries):
        try:
            tries[name]()
            said[name] = True
        except OSError:
            said[name] = False
    print(json.dumps(said))
"""


def arrived(listener):
    """How many connections wait at a listener that does not block."""
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


async def test_there_is_no_way_beside_the_proxy(sandbox, names):
    with (
        socket.create_server(("0.0.0.0", 0)) as everywhere,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as look,
    ):
        try:
            look.connect(("192.0.2.1", 9))
            own = look.getsockname()[0]
        except OSError:
            own = "127.0.0.2"
        given = {"port": everywhere.getsockname()[1], "own": own}
        everywhere.setblocking(False)
        only = ["the machine's loopback", "the machine's address"]
        control = json.loads((await anyio.run_process(asking(DIRECT, **given, only=only))).stdout)
        assert control == dict.fromkeys(only, True)
        assert arrived(everywhere) == 2  # from here it is reached
        outcome = await sandbox.run(asking(DIRECT, **given), seconds=60, serve=proxy(names).serve)
        assert arrived(everywhere) == 0
    found = json.loads(outcome.head)
    # Its own network has a loopback of its own.
    assert found.pop("a listener of its own") is True
    assert len(found) == 14
    assert not any(found.values()), found


async def test_bytes_connections_and_silence_are_limited(sandbox, names):
    async with site() as one_site:
        one_site.page = bytes(300_000)
        asked = f"GET http://{HOST}:{one_site.port}/ HTTP/1.1\r\n\r\n"
        code = """
            got = []
            for _ in range(6):
                try:
                    got.append(len(proxied(given["asked"])))
                except OSError:
                    got.append(-1)
            print(json.dumps(got))
        """
        limits = ProxyLimits(bytes=700_000, connections=4, silence_s=1)
        one = proxy(names, limits=limits)
        outcome = await sandbox.run(asking(code, asked=asked), seconds=60, serve=one.serve)
    got = json.loads(outcome.head)
    assert got[0] > 300_000
    assert got[1] > 300_000
    assert got[2] < 300_000
    assert len(one.made) == 4
    assert got[4:] in ([0, 0], [-1, -1], [0, -1], [-1, 0])


async def test_the_proxy_ends_with_the_command_also_with_connections_under_way(sandbox, names):
    held, gone = anyio.Event(), anyio.Event()

    async def hold(reader, writer):
        await reader.read(1)
        held.set()
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
        gone.set()

    async with listening(hold) as port:
        asked = f"GET http://{HOST}:{port}/ HTTP/1.1\r\n\r\n"
        one = proxy(names)
        with anyio.fail_after(60):
            outcome = await sandbox.run(
                asking('proxied(given["asked"])', asked=asked), seconds=4, serve=one.serve
            )
            assert held.is_set()
            await gone.wait()  # there is nobody behind it any more
        assert outcome.limit == "time" or outcome.status == 1


async def test_with_landlock_alone_there_is_no_network_and_the_proof_says_so(home, names):
    """Its rules know ports and no hosts: whoever may connect to the proxy's port may do so everywhere."""
    sandbox = await proved(sandbox_in(home, backend="landlock", connects=True))
    assert not sandbox.connects
    assert sandbox.proof.told.endswith("without any network: Landlock alone cannot give tools.shell.network")
    outcome = await sandbox.run(asking("print(proxied('GET /'))"), seconds=20, serve=proxy(names).serve)
    assert outcome.status == 1
    assert b"Operation not permitted" in outcome.head
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        everywhere.setblocking(False)
        given = {"port": everywhere.getsockname()[1], "own": "127.0.0.2"}
        outcome = await sandbox.run(asking(DIRECT, **given), seconds=60)
        assert arrived(everywhere) == 0
    assert not any(json.loads(outcome.head).values())


async def test_all_attempts_of_the_trial_are_made_with_the_network_too(home):
    sandbox = sandbox_in(home, backend="bubblewrap", connects=True)
    await proved(sandbox)
    assert sandbox.proof.told == "bubblewrap and seccomp, with a proxy to the hosts of tools.shell.network"
    outcome = await sandbox.run(
        "echo $http_proxy; cat ../../secret ../skills/a/SKILL.md; echo over > ../../secret", seconds=10
    )
    assert outcome.head.split()[0] == b"http://127.0.0.1:3128"
    assert b"something" not in outcome.head
    assert (home / "secret").read_text() == "something"
