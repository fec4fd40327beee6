"""What no reader of YAML may be trusted with: doubled keys, endless aliases, odd words, any text and any shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings
from gateway.settings.source import read_source
from tests.config_files import complaint, complaints


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a: [1\nb: 2", "line 2, column 2: bad YAML"),
            ("a:\n\t- x", "indent with spaces, not with tabs"),
            ("- a", 'line 1, column 1: must consist of "key: value" lines'),
            ("just text", 'must consist of "key: value" lines'),
            ("a: *b", "undefined alias"),
            ("a: b: c", "bad YAML"),
            ("a: @b:c", "put the text in quotes"),
            ("'a", "bad YAML"),
            ("a: 1\n---\nb: 2", "bad YAML"),
            ("? [a]\n: b", "a key must be plain text"),
            ("agents: {workspace: !secret x}", "the YAML tag !secret is not supported"),
            ("agents: {workspace: a, workspace: b}", "line 1, agents.workspace: appears twice"),
            ("\x00", "bad YAML"),
        ],
    )
    def test_what_is_no_yaml_is_told_with_its_place(self, tmp_path, text, expected):
        """The parser's own words, with line and column."""
        assert expected in complaint(tmp_path, text)

    def test_a_key_that_stands_twice_would_vanish_in_the_usual_reader(self, tmp_path):
        """The negative control for duplicates, and for YAML 1.1's words and times."""
        assert yaml.safe_load("a: 1\na: 2") == {"a": 2}
        assert yaml.safe_load("a: off") == {"a": False}
        assert yaml.safe_load("a: 22:00") == {"a": 1320}

    @pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &x [1,1,1,1,1,1,1,1,1]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n-1}' if n else '*a'] * 9)}]\n".replace("*a", "*x") for n in range(9))])  # fmt: skip
    def test_aliases_that_unfold_without_end_are_refused(self, tmp_path, text):
        """A small file must not fill the memory."""
        assert "expands without end" in complaints(tmp_path, text)

    def test_an_unreadable_file_is_told(self, tmp_path):
        """A folder, garbage bytes, a huge file."""
        with pytest.raises(ConfigInvalid, match="not a file"):
            load_settings(tmp_path)
        path = tmp_path / "x.yaml"
        path.write_bytes(b"a: \xff\xfe")
        with pytest.raises(ConfigInvalid, match="not UTF-8"):
            load_settings(path)
        path.write_bytes(b"#" * 1_000_001)
        with pytest.raises(ConfigInvalid, match="right file"):
            load_settings(path)

    @given(st.text(max_size=200))
    @hypothesis_settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
    )
    def test_no_text_is_more_than_a_complaint(self, tmp_path, text):
        """Whatever the file holds, the outcome is settings or `ConfigInvalid`."""
        path = tmp_path / "fuzz.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load_settings(path, environ={})
        except ConfigInvalid as error:
            assert "problem" in str(error)

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["owner", "llm", "agents", "channels", "gateway", "models", "pools", "providers", "matrix", "email", "http", "log", "listen", "heartbeat", "aliases", "main", "x"]), inner, max_size=4), max_leaves=12))  # fmt: skip
    @hypothesis_settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
    )
    def test_no_shape_is_more_than_a_complaint(self, tmp_path, data):
        """Right keys in wrong places, with wrong values."""
        path = tmp_path / "fuzz.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        try:
            load_settings(path, environ={})
        except ConfigInvalid as error:
            assert "problem" in str(error)


@pytest.mark.parametrize("entries", [25_000, 200_000])
def test_a_list_without_measure_is_called_that_and_nothing_else(tmp_path: Path, entries: int) -> None:
    """Each of its entries was said to be no text, after 14 s."""
    file = tmp_path / "squidbot.yaml"
    file.write_text(f"channels:\n  email:\n    allow_from: [{'a,' * entries}]\n")
    source = read_source(file, {})
    assert len(source.problems) == 1
    assert "more than 20,000 values" in source.problems[0].message
