"""How much a server may say, before anything of it is parsed."""

from __future__ import annotations

import json
import time

import pytest

from agent_core.tools.mcp.definitions import Allowance, LineReader, ServerMisbehaviour, check_message


def fed(pieces):
    reader = LineReader()
    return [line for piece in pieces for line in reader.feed(piece)]


def test_lines_are_the_same_however_they_are_cut():
    whole = b'{"a":1}\n\n{"b":2}\r\n{"c":3}\nrest'
    wanted = [b'{"a":1}', b'{"b":2}\r', b'{"c":3}']
    for size in (1, 2, 3, 7, 1000):
        assert fed(whole[at : at + size] for at in range(0, len(whole), size)) == wanted


def test_a_line_has_a_limit_whether_it_ends_or_not():
    with pytest.raises(ServerMisbehaviour, match="4 MB"):
        fed([b"a" * 65536] * 62)
    assert fed([b"a" * 65536] * 60) == []
    with pytest.raises(ServerMisbehaviour, match="4 MB"):
        check_message(b'"' + b"a" * 4_000_000 + b'"')


def test_parts_are_counted_outside_of_texts():
    check_message(json.dumps({"text": '[{,\\"' * 100_000}).encode())
    check_message(json.dumps(list(range(19_000))).encode())
    for message in (b"[" + b"[]," * 30_000 + b"[]]", json.dumps([{"a": ","}] * 10_001).encode()):
        with pytest.raises(ServerMisbehaviour, match="parts"):
            check_message(message)


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b'",', b'\\",', b'"[\\"'])
def test_counting_takes_linear_time(unit):
    """A regular expression that goes back would take minutes for one of these."""
    began = time.process_time()
    for lead in (b"", b'"'):
        try:
            check_message((lead + unit * 1_300_000)[:3_900_000] + b"," * 30_000)
        except ServerMisbehaviour:
            pass
    assert time.process_time() - began < 20


def test_a_flood_is_noticed_and_a_steady_flow_is_not():
    allowance = Allowance()
    for second in range(1000):
        for _ in range(40):
            allowance.spend(1000, now=float(second))
    with pytest.raises(ServerMisbehaviour, match="flood"):
        for _ in range(600):
            allowance.spend(10, now=1000.0)
    with pytest.raises(ServerMisbehaviour, match="flood"):
        for _ in range(10):
            Allowance.spend(allowance, 4_000_000, now=2000.0)
