"""Lines of files as texts of PostgreSQL: nothing of the bytes is lost, and nothing is there that it refuses."""

from __future__ import annotations

import base64
import json

from hypothesis import example, given
from hypothesis import strategies as st

from agent_core.storage.history_lines import as_object
from gateway.store.copied_home import as_text

BYTES = st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(BYTES.map(lambda raw: raw.replace(b"\n", b"")))
@example(b"\0")
@example(b"\xff\xfe")
@example(b'{"bytes_of_a_broken_line":"AA=="}')
@example(b'{"bytes_of_a_broken_line":"no base64"}')
@example(b'{"a": "\xed\xa0\x80"}')
def test_every_line_is_kept(raw: bytes):
    """Also one that looks like what damage is written as; of a readable one that is no UTF-8, what it says."""
    text = as_text(raw)
    text.encode()
    assert "\0" not in text
    if text.startswith('{"bytes_of_a_broken_line":'):
        assert base64.b64decode(json.loads(text)["bytes_of_a_broken_line"]) == raw
    elif text.encode() != raw:
        said = as_object(raw)
        assert said is not None
        assert {**said, "enc": "json"} == as_object(text.encode())
