"""
A fetch reaches the public web only, and nothing that a server does keeps it or fills it up.

Each way to a canary is tried twice: by the client, which must not reach it, and by one that checks nothing,
which must, or the way would be none.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
import zlib
from ipaddress import ip_network

import pytest
import trustme

from agent_core.tools.web.ip_rules import AddressReach
from agent_core.tools.web.web_client import WebFailed, is_own_address
from tests.web_world import OPEN, PRIVATE, PUBLIC, SAFE, Names, client, http, redirect, server

pytestmark = pytest.mark.virtual_time


async def reached(fetch, canary) -> bool:
    """Whether a fetch has got to the canary; one that is stopped says what is not allowed."""
    before = canary.connections
    try:
        await fetch
    except WebFailed as error:
        assert "may not be reached" in str(error)
    return canary.connections > before


LITERALS = ["{}", "[::ffff:{}]", "１２７.０.０.２", "127。0。0。2", "①②⑦.0.0.2"]


@pytest.mark.parametrize("literal", LITERALS)
async def test_no_form_of_a_private_address_is_reached(literal):
    async with server(PRIVATE) as canary:
        canary.answers["/"] = http(200, b"secret")
        url = canary.url(host=literal.format(PRIVATE))
        assert not await reached(client(SAFE).get(url), canary)
        assert await reached(client(OPEN).get(url), canary)


async def test_the_loopback_of_ipv6_is_not_reached():
    async with server("::1") as canary:
        canary.answers["/"] = http(200, b"secret")
        assert not await reached(client(SAFE).get(canary.url()), canary)
        assert await reached(client(OPEN).get(canary.url()), canary)


@pytest.mark.parametrize("address", [PRIVATE, f"::ffff:{PRIVATE}", f"{PRIVATE} {PRIVATE}"])
async def test_a_name_that_leads_to_a_private_address_is_not_reached(address):
    async with server(PRIVATE) as canary:
        canary.answers["/"] = http(200, b"secret")
        url = canary.url(host="inside.test")
        assert not await reached(client(SAFE, Names(inside_test=[address])).get(url), canary)
        assert await reached(client(OPEN, Names(inside_test=[address])).get(url), canary)


async def test_of_several_addresses_only_the_public_one_is_connected_to():
    async with server() as public, server(PRIVATE) as canary:
        public.answers["/"] = http(200, b"hello")
        names = Names(both_test=[f"{PRIVATE} {PUBLIC}"])
        found = await client(SAFE, names).get(public.url(host="both.test"))
        assert found.body == b"hello"
        assert not canary.connections


async def test_a_name_that_changes_between_two_lookups_gains_nothing():
    """The same port at both addresses: first the page, then, after a redirect to itself, the canary."""

    def names() -> Names:
        return Names(turns_test=[PUBLIC, PRIVATE])

    async with server() as public:
        canary = type(public)(PRIVATE)
        inside = await asyncio.start_server(canary.serve, PRIVATE, public.port)
        async with inside:
            public.answers["/"] = redirect("/again")
            canary.answers["/again"] = http(200, b"secret")
            url = public.url(host="turns.test")
            used = names()
            assert not await reached(client(SAFE, used).get(url), canary)
            assert used.looked_up == ["turns.test", "turns.test"]
            assert await reached(client(OPEN, names()).get(url), canary)
            # Two fetches, the second of which finds the other address.
            public.answers["/"] = http(200, b"page")
            both = client(SAFE, names())
            assert (await both.get(url)).body == b"page"
            assert not await reached(both.get(url), canary)
        await canary.end()


async def test_an_address_that_was_checked_is_looked_up_once():
    async with server() as public:
        public.answers["/"] = http(200, b"page")
        names = Names(once_test=[PUBLIC, PRIVATE])
        assert (await client(SAFE, names).get(public.url(host="once.test"))).body == b"page"
        assert names.looked_up == ["once.test"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("hops", [1, 4])
async def test_no_chain_of_redirects_leads_inside(status, hops):
    async with server() as public, server(PRIVATE) as canary:
        canary.answers["/"] = http(200, b"secret")
        for number in range(hops):
            public.answers[f"/{number}"] = redirect(f"/{number + 1}", status)
        public.answers[f"/{hops}"] = redirect(canary.url(), status)
        assert not await reached(client(SAFE).get(public.url("/0")), canary)
        assert await reached(client(OPEN).get(public.url("/0")), canary)


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://168.63.129.16/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[::ffff:169.254.169.254]/",
    ],
)
@pytest.mark.parametrize("reach", [SAFE, OPEN])
async def test_a_redirect_to_the_keys_of_a_cloud_makes_no_connection(target, reach, monkeypatch):
    async with server() as public:
        public.answers["/"] = redirect(target)
        connected = []
        loop = asyncio.get_running_loop()
        real = loop.sock_connect

        async def noted(sock, address):
            connected.append(address[0])
            await real(sock, address)

        monkeypatch.setattr(loop, "sock_connect", noted)
        with pytest.raises(WebFailed, match="may not be reached"):
            await client(reach).get(public.url())
        assert connected == [PUBLIC]  # so connections are noted


@pytest.mark.parametrize(
    "target",
    [
        *(
            "file:///etc/passwd",
            "ftp://example.org/",
            "gopher://127.0.0.1:70/",
            "data:text/plain,a",
            "javascript:1",
        ),
        *(
            "http://2130706434/",
            "http://127.2/",
            "http://0x7f.2/",
            "http://0177.0.0.2/",
            "http://u@127.0.0.2/",
        ),
        *("//127.2/", "http://127.0.0.2\\@example.org/", "http://[::1", "/ a", "/\tb", "x" * 5000),
    ],
)
async def test_a_redirect_to_what_is_no_plain_address_is_not_followed(target):
    async with server() as public:
        public.answers["/"] = redirect(target)
        with pytest.raises(WebFailed, match=r"cannot be used|broken"):
            await client(OPEN).get(public.url())
        assert public.connections == 1


async def test_redirects_end():
    async with server() as public:
        public.answers["/"] = redirect("/")
        with pytest.raises(WebFailed, match="more than 5 times"):
            await client(SAFE).get(public.url())
        assert public.connections == 6


async def test_relative_redirects_are_followed_and_the_last_address_is_told():
    async with server() as public:
        public.answers["/a/b"] = redirect("../c?d=1#e")
        public.answers["/c"] = http(200, b"there")
        found = await client(SAFE).get(public.url("/a/b"))
        assert (found.address, found.body) == (public.url("/c?d=1"), b"there")


async def test_other_ports_of_the_public_web_are_not_connected_to():
    """Checked where the socket would be made, so nothing is sent to the address."""
    with pytest.raises(WebFailed, match="port 25 is not one of 80, 443"):
        await client(SAFE, Names(mail_test=["8.8.8.8"])).get("http://mail.test:25/")


async def test_nothing_of_ours_goes_along(monkeypatch, tmp_path):
    """No proxy of the environment, no password of .netrc, no cookie, no referrer, and an honest name."""
    async with server() as public, server(PRIVATE) as proxy:
        (tmp_path / ".netrc").write_text(f"machine {PUBLIC} login me password secret")
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        monkeypatch.setenv("http_proxy", proxy.url())
        public.answers["/"] = http(302, b"", Location="/next", Set_Cookie="a=b; Path=/")
        public.answers["/next"] = http(200, b"page")
        web = client(SAFE)
        await web.get(public.url())
        await web.get(public.url())
        assert not proxy.connections
        assert len(public.asked) == 4
        for head in public.asked:
            names = {line.partition(":")[0].lower() for line in head.splitlines()[1:] if line}
            assert names == {"host", "accept", "user-agent", "accept-encoding", "connection"}
            assert "User-Agent: squidbot" in head


# ── what hostile servers do ──


async def test_a_body_ends_at_the_limit():
    async with server() as public:

        async def endless(_head, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            while True:
                writer.write(b"a" * 10_000)
                await writer.drain()

        public.answers["/"] = endless
        found = await client(SAFE, max_bytes=100_000).get(public.url())
        assert (len(found.body), found.is_cut) == (100_000, True)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_what_is_unpacked_ends_at_the_limit(coding):
    """100 MB of zeros in 100 kB: no more is unpacked than is read."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    head = pack.compress(bytes(1_000_000)) + pack.flush(zlib.Z_FULL_FLUSH)
    bomb = head + (pack.compress(bytes(1_000_000)) + pack.flush(zlib.Z_FULL_FLUSH)) * 100
    async with server() as public:
        public.answers["/"] = http(200, bomb, Content_Encoding=coding)
        tracemalloc.start()
        try:
            found = await client(SAFE, max_bytes=1_000_000).get(public.url())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (len(found.body), found.is_cut) == (1_000_000, True)
        assert peak < 20_000_000


async def test_an_honest_packed_page_is_unpacked():
    async with server() as public:
        public.answers["/"] = http(200, gzip.compress(b"page"), Content_Encoding="gzip")
        assert (await client(SAFE).get(public.url())).body == b"page"


def slowly(first: bytes, piece: bytes, every_s: float):
    async def answer(_head, writer):
        writer.write(first)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return answer


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (slowly(b"", b"", 1), "in time"),
        (slowly(b"HTTP/1.1 200 OK\r\n", b"a", 1), "in time"),
        (slowly(b"HTTP/1.1 200 OK\r\nX: a", b"a", 2), "in time"),
        (slowly(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n", 0.5), "in time|broken"),
        (slowly(b"", b"HTTP/1.1 103 Early\r\n\r\n", 0.1), "broken"),
        (slowly(HEAD + b"\r\n", b"a", 1), "in time"),
        (slowly(HEAD + b"\r\n", b"a" * 300, 0.5), "in time"),
        (slowly(HEAD + b"\r\n", b"a" * 20_000, 9), "in time"),
        (slowly(HEAD + b"\r\na", b"", 1), "in time"),
        (slowly(HEAD + b"Content-Length: 10\r\n\r\n", b"a", 4), "in time"),
        (slowly(HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"")[:10], b"\0\0", 1), "in time|broken"),
    ],
)  # fmt: skip
async def test_no_server_keeps_a_fetch(answer, said):
    """In virtual time: silence, and a head or body that drips, whichever way."""
    async with server() as public:
        public.answers["/"] = answer
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(WebFailed, match=said):
            await client(SAFE).get(public.url())
        assert loop.time() - began < 32


async def test_a_slow_server_that_is_fast_enough_is_read():
    async with server() as public:

        async def answer(_head, writer):
            writer.write(HEAD + b"\r\n")
            for _ in range(10):
                writer.write(b"a" * 3000)
                await writer.drain()
                await asyncio.sleep(2)

        public.answers["/"] = answer
        assert len((await client(SAFE).get(public.url())).body) == 30_000


def raw(content: bytes):
    async def answer(_head, writer):
        writer.write(content)
        await writer.drain()

    return answer


async def reset(_head, writer):
    writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize(
    "answer",
    [
        raw(b""),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"220 mail.example.org ESMTP\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(5000)) + b"\r\n"),
        raw(b"HTTP/1.1 200 " + b"a" * 100_000 + b"\r\n\r\n"),
        raw(b"HTTP/1.1 99999 OK\r\n\r\n"),
        raw(HEAD + b"Content-Length: 100\r\n\r\nabc"),
        raw(HEAD + b"Content-Length: -1\r\n\r\nabc"),
        raw(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
        raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n"),
        raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
        raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nabc"),
        raw(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"),
        reset,
    ],
)  # fmt: skip
async def test_a_broken_answer_is_told_in_plain_words(answer):
    async with server() as public:
        public.answers["/"] = answer
        with pytest.raises(WebFailed, match=r"broken|broke off|in time") as told:
            await client(SAFE).get(public.url())
        assert len(str(told.value)) < 200


async def test_servers_that_are_not_there_are_told_apart():
    async with server() as public:
        gone = public.url()
    with pytest.raises(WebFailed, match="accepts no connections"):
        await client(SAFE).get(gone)
    with pytest.raises(WebFailed, match=r"There is no host nowhere\.test"):
        await client(SAFE).get("http://nowhere.test/")


@pytest.mark.parametrize(("name", "is_valid"), [("good.test", True), ("other.test", False)])
async def test_a_certificate_must_be_of_the_very_host(name, is_valid):
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert("good.test").configure_cert(theirs)
    async with server(tls=theirs) as public:
        public.answers["/"] = http(200, b"page")
        url = public.url(host=name).replace("http:", "https:")
        names = Names(good_test=[PUBLIC], other_test=[PUBLIC])
        if is_valid:
            assert (await client(SAFE, names, tls=ours).get(url)).body == b"page"
        else:
            with pytest.raises(WebFailed, match="no valid certificate"):
                await client(SAFE, names, tls=ours).get(url)
    with pytest.raises(WebFailed, match="no valid certificate"):
        async with server(tls=theirs) as public:
            await client(SAFE, names).get(public.url(host="good.test").replace("http:", "https:"))


async def test_one_host_is_not_asked_at_once_again_and_others_are():
    async with server() as public:
        public.answers["/"] = http(200, b"page")
        names = Names(a_test=[PUBLIC], b_test=[PUBLIC])
        web = client(SAFE, names, apart_s=1.0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(web.get(public.url(host="a.test")), web.get(public.url(host="b.test")))
        assert loop.time() - began < 1
        await web.get(public.url(host="a.test"))
        assert loop.time() - began >= 1


async def test_too_many_requests_to_one_host_are_refused():
    async with server() as public:
        public.answers["/"] = http(200, b"page")
        web = client(SAFE, apart_s=6.0)
        results = await asyncio.gather(*(web.get(public.url()) for _ in range(4)), return_exceptions=True)
        assert [type(each) for each in results].count(WebFailed) == 2
        assert public.connections == 2


async def test_only_a_few_are_fetched_at_once():
    async with server() as public:
        at_once = most = 0

        async def answer(_head, writer):
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1
            writer.write(http(200, b"page"))

        public.answers["/"] = answer
        web = client(SAFE)
        await asyncio.gather(*(web.get(public.url()) for _ in range(9)))
        assert most == 4


def test_this_machine_knows_its_own_addresses():
    """Loopback stands for an address of our own; of others the machine says no."""
    from ipaddress import ip_address

    assert is_own_address(ip_address("127.0.0.1"))
    assert is_own_address(ip_address("127.9.9.9"))
    assert not is_own_address(ip_address("8.8.8.8"))
    assert not is_own_address(ip_address("2606:4700:4700::1111"))


@pytest.mark.parametrize("way", ["address", "name", "redirect", "redirect to a name"])
@pytest.mark.parametrize("named", [False, True])
async def test_the_own_network_is_reached_only_where_a_person_has_named_it(way, named):
    """A stranger's link, name or redirect does not lead to a device, although its network is allowed."""
    reach = AddressReach(allow_private=(ip_network(PUBLIC), ip_network(PRIVATE)))
    async with server() as public, server(PRIVATE) as device:
        device.answers["/reboot"] = http(200, b"rebooting")
        names = Names(device_test=[PRIVATE], page_test=[PUBLIC])
        aim = device.url("/reboot?confirm=yes", host="device.test" if "name" in way else "")
        public.answers["/"] = redirect(aim)
        start = public.url(host="page.test") if "redirect" in way else aim
        fetch = client(reach, names).get(start, named=named)
        if named and "redirect" not in way:
            assert (await fetch).body == b"rebooting"
        else:
            with pytest.raises(WebFailed, match="Ask the person to write the address"):
                await fetch
            assert not device.connections


async def test_a_device_may_redirect_within_itself():
    async with server(PRIVATE) as device:
        device.answers["/"] = redirect("/home")
        device.answers["/home"] = http(200, b"hello")
        found = await client(AddressReach(allow_private=(ip_network(PRIVATE),))).get(device.url())
        assert found.body == b"hello"


async def _pour(first: bytes, again: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(first)
    while True:
        writer.write(again * 1000)
        await writer.drain()


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"and more "),
    ],
    ids=["interim answers", "headers", "one header"],
)
async def test_a_head_without_end_is_given_up(first, again):
    """The fetch ends with an error that says so, not by its deadline."""
    async with server() as public:
        public.answers["/"] = lambda _, writer: _pour(first, again, writer)
        with pytest.raises(WebFailed, match="sent an answer that is broken"):
            await client().get(public.url())


async def test_some_interim_answers_are_read_over():
    async with server() as public:
        public.answers["/"] = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + http(200, b"hello")
        assert (await client().get(public.url())).body == b"hello"
