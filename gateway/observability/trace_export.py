"""
The one door to OpenTelemetry: spans are kept in a bounded queue, and a thread of the SDK sends them to the
collector. Nothing here waits in the event loop, and nothing that the collector does is felt by an answer: of
its responses only status and headers are read, each export has a deadline, and what does not fit or was not
accepted is dropped and counted in a log line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from gateway.system.version import version

if TYPE_CHECKING:
    import requests

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The version of the semantic conventions by which names and attributes are chosen."""
QUEUE = 1024
"""The most spans that wait."""
_EVERY_S = 2.0
_KINDS = {"client": SpanKind.CLIENT, "producer": SpanKind.PRODUCER}
_log = structlog.get_logger(__name__)


class SpanSender:
    """Makes spans and sends them to ``endpoint``, in batches; ``headers`` go with each request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would repeat a server's words
        self._exporter = _CountingExporter(
            OTLPSpanExporter(endpoint, headers=dict(headers), timeout=10.0, session=_unread_session())
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "squidbot", "service.version": version()}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attributes=64, max_span_attribute_length=8192),
        )
        self._provider.add_span_processor(_BoundedProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("squidbot", schema_url=SCHEMA_URL)

    def begin(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        kind: str,
        parent: Span | None,
        to: SpanContext | None,
    ) -> Span:
        """Begin a span, below ``parent`` and linked ``to`` another, if there are such."""
        return self._tracer.start_span(
            name,
            None if parent is None else set_span_in_context(parent),
            kind=_KINDS.get(kind, SpanKind.INTERNAL),
            attributes=attributes,
            links=[] if to is None else [Link(to)],
        )

    def end(self, span: Span, error: str = "") -> None:
        """End a span; with ``error``, the name of a class, as failed."""
        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def stop(self) -> None:
        """Send what waits, for some seconds at most; what is left then is lost."""
        last = threading.Thread(target=self._provider.shutdown, name="traces-stop", daemon=True)
        last.start()
        last.join(3.0)
        self._exporter.report_drops(at_once=True)


class _CountingExporter(SpanExporter):
    """Counts what was not accepted, and says so in the log, once a minute at most."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._told_at = float("-inf")
        self._told = 0
        self.admitted = self.refused = 0  # written by the event loop's thread alone
        self.taken = self.lost = 0  # written by the SDK's thread alone

    @property
    def is_full(self) -> bool:
        """True while no further span fits."""
        return self.admitted - self.taken >= QUEUE

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch. Raises nothing."""
        try:
            result = self._inner.export(spans)
        except Exception:  # noqa: BLE001 - whatever a server makes a library raise
            result = SpanExportResult.FAILURE
        self.taken += len(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
        self.report_drops()
        return result

    def report_drops(self, *, at_once: bool = False) -> None:
        """Log what was dropped since the last such line."""
        dropped, now = self.lost + self.refused, time.monotonic()
        if at_once:
            dropped += self.admitted - self.taken
        if dropped > self._told and (at_once or now - self._told_at >= 60.0):
            _log.warning("traces.dropped", spans=dropped - self._told, remedy="does the collector answer?")
            self._told, self._told_at = dropped, now

    def shutdown(self) -> None:
        """End the connection."""
        self._inner.shutdown()


class _BoundedProcessor(BatchSpanProcessor):
    """Refuses and counts what comes while the queue is full; the SDK's own would throw away older spans."""

    def __init__(self, exporter: _CountingExporter) -> None:
        super().__init__(
            exporter,
            max_queue_size=QUEUE,
            max_export_batch_size=256,
            schedule_delay_millis=_EVERY_S * 1000,
        )
        self._counts = exporter

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it."""
        if self._counts.is_full:
            self._counts.refused += 1
            self._counts.report_drops()
        else:
            self._counts.admitted += 1
            super().on_end(span)


def _unread_session() -> requests.Session:
    """A session that reads no body: a collector has nothing to say that is worth a megabyte of memory."""
    import requests  # noqa: PLC0415 - urllib3 tries a socket at its import

    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_close)
    return session


def _close(response: requests.Response, *_: Any, **__: Any) -> None:
    response.close()
    if response.is_redirect:  # the exporter follows none, and would call it a success
        raise ValueError("the collector is elsewhere")
