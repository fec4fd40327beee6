"""What a command may ask the proxy for: hosts of the setting, requests, the first words of TLS."""

from __future__ import annotations

import ssl

import pytest

from agent_core.tools.shell.config import ShellSettings
from agent_core.tools.shell.proxy import (
    ProxyRefused,
    check_tunnel,
    host_pattern,
    is_listed,
    request_of,
    server_name_of,
)
from tests.rows import rows


@rows(
    ("written", "kept"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("*.Example.org", "*.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("192.168.1.5", "192.168.1.5"),
    ],
)
def test_a_host_of_the_setting_has_one_spelling(written, kept):
    assert host_pattern(written) == kept
    assert ShellSettings(network=[written]).network == (kept,)


@rows(
    "written",
    [
        "*",
        "*.",
        "*.org",
        "a.*.org",
        "https://a.org",
        "a.org:443",
        "a.org/b",
        "",
        "a b.org",
        "0x7f.1",
        "u@a.org",
    ],
)
def test_what_is_no_host_is_no_setting(written):
    with pytest.raises(ValueError, match=r".+"):
        host_pattern(written)
    with pytest.raises(ValueError, match="network"):
        ShellSettings(network=[written])


def test_a_star_stands_for_all_below_and_not_for_the_host_itself():
    assert is_listed("a.example.org", ["*.example.org"])
    assert is_listed("b.a.example.org", ["*.example.org"])
    for host in ("example.org", "evilexample.org", "a.example.org.evil.net", "example.org.evil.net"):
        assert not is_listed(host, ["*.example.org"]), host
    assert not is_listed("a.pypi.org", ["pypi.org"])


def test_a_request_is_put_together_anew():
    head = (
        b"POST http://Data.Example:8080/a?b=%2f HTTP/1.1\r\nHost: evil.example\r\nAccept: */*\r\n"
        b"Proxy-Authorization: Basic x\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nContent-Length: 3"
    )
    found = request_of(head)
    assert (found.host, found.port, found.body_bytes, found.is_tunnel) == ("data.example", 8080, 3, False)
    assert found.head.split(b"\r\n") == [
        b"POST /a?b=%2f HTTP/1.1",
        b"Host: data.example:8080",
        b"Accept: */*",
        b"Content-Length: 3",
        b"Connection: close",
        b"",
        b"",
    ]


def test_the_length_of_a_body_cannot_be_hidden_as_a_header_of_the_connection():
    head = b"POST http://a.example/ HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 3"
    assert b"Content-Length: 3" in request_of(head).head


@rows("written", [b"Content-Length:3", b"content-length: \t003\t ", b"CONTENT-LENGTH: 3"])
def test_the_length_goes_on_as_it_was_understood(written):
    found = request_of(b"POST http://a.example/ HTTP/1.1\r\n" + written)
    assert found.body_bytes == 3
    assert found.head.split(b"\r\n")[2:-3] == [b"Content-Length: 3"]
    assert b"ength" not in request_of(b"GET http://a.example/ HTTP/1.1\r\nA: b").head


def test_every_header_of_the_connection_counts():
    head = b"GET http://a.example/ HTTP/1.1\r\nConnection: X-A\r\nX-A: 1\r\nX-B: 2\r\nConnection: close,\tX-B"
    assert b"X-" not in request_of(head).head


@rows(
    "head",
    [
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length: 3\xa0",
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length: \x853",
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length:",
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3",
        b"GET http://a.example/ HTTP/1.1\nHost: b",
        b"GET  http://a.example/ HTTP/1.1",
        b"GET http://a.example/\x00 HTTP/1.1",
        b"GET http://a.example:99999/ HTTP/1.1",
        b"GET http://a.example\\@b.example/ HTTP/1.1",
        b"GET https://a.example/ HTTP/1.1",
        b"GET ftp://a.example/ HTTP/1.1",
        b"GET http://a.example/ HTTP/2",
        b"GET http://a.example/ HTTP/1.1\r\nA : b",
        b"GET http://a.example/ HTTP/1.1\r\nA: b\nHost: c",
        b"GET http://a.example/ HTTP/1.1\r\nTransfer-Encoding: identity",
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length: -1",
        b"GET http://a.example/ HTTP/1.1\r\nContent-Length: 1, 2",
        b"CONNECT a.example HTTP/1.1",
        b"CONNECT a.example:443/ HTTP/1.1",
        b"CONNECT 0x7f.1:443 HTTP/1.1",
        b"CONNECT a.example:0 HTTP/1.1",
        b"",
    ],
)
def test_what_is_not_clear_is_not_carried_out(head):
    with pytest.raises(ProxyRefused):
        request_of(head)


def hello(name):
    """What a client says first."""
    said, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl._create_unverified_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(heard, said, server_hostname=name).do_handshake()
    return said.read()


def test_a_tunnel_names_its_host():
    assert server_name_of(hello("Data.Example")) == "data.example"
    check_tunnel(hello("Data.Example"), "data.example")
    with pytest.raises(ProxyRefused, match="another host"):
        check_tunnel(hello("hidden.example"), "data.example")
    with pytest.raises(ProxyRefused, match="must name its host"):
        check_tunnel(hello(None), "data.example")


@rows("address", ["192.168.1.5", "2001:db8::1"])
def test_a_tunnel_to_an_address_names_no_host(address):
    """Many hosts may share it, and none of them is listed."""
    check_tunnel(hello(None), address)
    with pytest.raises(ProxyRefused, match="another host"):
        check_tunnel(hello("hidden.example"), address)
    with pytest.raises(ProxyRefused, match="TLS"):
        check_tunnel(b"SSH-2.0-x\r\n", address)


def test_every_piece_of_a_first_record_is_refused_and_nothing_else_is_raised():
    whole = hello("data.example")
    for end in range(len(whole)):
        with pytest.raises(ProxyRefused):
            server_name_of(whole[:end])
    for at in range(len(whole)):
        for value in (0, 1, 255):
            changed = whole[:at] + bytes([value]) + whole[at + 1 :]
            try:
                name = server_name_of(changed)
            except ProxyRefused:
                continue
            assert name in ("data.example", "") or at >= whole.index(b"data.example") - 1


def test_who_hides_the_host_is_refused():
    """The control is an extension that says nothing."""
    whole = hello("data.example")

    def with_extension(kind):
        extension = kind.to_bytes(2, "big") + b"\0\0"
        body = whole[9:]
        at = 2 + 32
        at += 1 + body[at]
        at += 2 + int.from_bytes(body[at : at + 2], "big")
        at += 1 + body[at]
        size = int.from_bytes(body[at : at + 2], "big") + 4
        body = body[:at] + size.to_bytes(2, "big") + body[at + 2 :] + extension
        inner = whole[5:6] + len(body).to_bytes(3, "big") + body
        return whole[:3] + len(inner).to_bytes(2, "big") + inner

    assert server_name_of(with_extension(0x1234)) == "data.example"
    with pytest.raises(ProxyRefused, match="openly"):
        server_name_of(with_extension(0xFE0D))
