"""Traces off cost nothing, on they never wait, and settings that send nothing or too much are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog
from pydantic import ValidationError

from gateway.observability import traces
from gateway.observability.trace_export import QUEUE, SpanSender
from gateway.settings import Settings
from gateway.settings.loading import _soft_warnings
from tests.doubles.trace_collector import TraceCollector

_CALLS = """
import json, sys
from agent_core.models import ToolResult
from gateway.observability import traces
{before}
traces.note_outcome("answered")
traces.begin_tool(None, None, "read", ())
traces.end_tool(0, ToolResult(content="x"))
with traces.trace_turn({turn}), traces.trace_delivery({turn}, "matrix"):
    traces.ModelTrace("chat", []).end(["x"], [], None, None)
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"opentelemetry", "requests"}})))
"""
_ON = 'traces.start_traces("http://127.0.0.1:9/v1/traces", {}, contents=False, secret_texts=())'


def loaded(before: str = "") -> list[str]:
    """What a clean process has loaded after every function of `traces` was called."""
    code = _CALLS.format(before=before, turn="None")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    return json.loads(done.stdout)


def test_off_nothing_is_imported():
    assert loaded() == []


def test_an_import_would_be_seen():
    """The control."""
    assert loaded(f"{_ON}; traces._on.pop()") == ["opentelemetry", "requests"]


def test_what_does_not_fit_is_dropped_and_counted():
    """While the collector is silent the queue fills and no further; nothing waits, and one line tells of each drop."""
    with TraceCollector("silent") as collector, structlog.testing.capture_logs() as lines:
        sender = SpanSender(collector.url, {})
        for _ in range(QUEUE + 300):
            sender.end(sender.begin("x", {}, kind="", parent=None, to=None))
        assert sender._exporter.admitted == QUEUE
        assert sender._exporter.refused == 300
        sender.stop()
        assert sum(line["spans"] for line in lines if line["event"] == "traces.dropped") == QUEUE + 300


def test_what_fits_arrives():
    """The control: with a collector that answers nothing of so many is dropped."""
    with TraceCollector() as collector, structlog.testing.capture_logs() as lines:
        sender = SpanSender(collector.url, {})
        for _ in range(QUEUE):
            sender.end(sender.begin("x", {}, kind="", parent=None, to=None))
        sender.stop()
        assert len({span.id for span in collector.spans}) == QUEUE
        assert not lines


def given(**more):
    return Settings.model_validate(
        {"gateway": {"traces": {"endpoint": "http://127.0.0.1:4318/v1/traces", **more}}}
    )


def test_a_missing_library_is_told_and_stops_nothing(monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(name)

    assert not [one for one in _soft_warnings(given()) if "traces" in one]  # the control
    monkeypatch.setattr(traces.importlib.util, "find_spec", refuse)
    [warning] = [one for one in _soft_warnings(given()) if "traces" in one]
    assert "pip install '.[otel]'" in warning
    with structlog.testing.capture_logs() as lines:
        traces.start_traces("http://127.0.0.1:9/", {}, contents=False, secret_texts=())
    assert [line["event"] for line in lines] == ["traces.off"]
    assert not traces._on


def test_unencrypted_words_are_told():
    remote = "http://traces.example.org/v1/traces"
    assert any("unencrypted" in one for one in _soft_warnings(given(endpoint=remote, contents=True)))
    assert not any("unencrypted" in one for one in _soft_warnings(given(endpoint=remote)))
    assert not any("unencrypted" in one for one in _soft_warnings(given(contents=True)))


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "ftp://a/b", "http://user:word@a/v1/traces"])
def test_an_endpoint_is_an_address_without_a_password(endpoint):
    with pytest.raises(ValidationError):
        given(endpoint=endpoint)


def test_headers_are_secrets():
    assert "a-token-of-mine" in given(headers={"Authorization": "a-token-of-mine"}).secrets()


def test_a_variable_that_the_library_cannot_read_stops_no_start(monkeypatch):
    """The control: without it they are on."""
    try:
        for value, on in (("many", 0), ("100", 1)):
            monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", value)
            traces.start_traces("http://127.0.0.1:9/v1/traces", {}, contents=False, secret_texts=())
            assert len(traces._on) == on
            traces.stop_traces()
    finally:
        traces.stop_traces()
