"""A collector of traces on loopback: it decodes OTLP over HTTP, or behaves as none should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from devservers.environment import cache_folder
from devservers.ports import lease_ports


@dataclass(frozen=True)
class Seen:
    """A span as it came, its attributes as values of Python."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    error: bool
    links: tuple[str, ...]
    schema: str
    attributes: dict[str, Any] = field(default_factory=dict)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


class TraceCollector:
    """``mode``: ``good``, ``refusing`` (403), ``redirecting``, ``huge`` (100 MB and an error), ``silent``."""

    def __init__(self, mode: str = "good") -> None:
        self.mode = mode
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.raw = b""
        self.requests = 0
        self.sent_bytes = 0
        self._over = threading.Event()
        [self._lease] = lease_ports(1, cache_folder() / "ports")
        self.url = f"http://127.0.0.1:{self._lease.port}/v1/traces"
        self._server = ThreadingHTTPServer(("127.0.0.1", self._lease.port), self._handler())
        self._server.daemon_threads = True

    def wait(self, true: Callable[[], bool], *, within_s: float = 60.0) -> None:
        """Wait until something is true of what has come."""
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.05)

    def named(self, beginning: str) -> list[Seen]:
        """The spans with such names."""
        return [span for span in self.spans if span.name.startswith(beginning)]

    def _take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += [
                    Seen(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.status.code == 2,
                        tuple(link.span_id.hex() for link in span.links),
                        scope.schema_url,
                        {each.key: _value(each.value) for each in span.attributes},
                    )
                    for span in scope.spans
                ]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                collector.headers.append(dict(self.headers))
                match collector.mode:
                    case "silent":
                        collector._over.wait(120)
                    case "huge":
                        self._flood()
                    case "redirecting":
                        self.send_response(307)
                        self.send_header("Location", collector.url)
                        self.send_header("Content-Length", "0")
                        self.end_headers()
                    case mode:
                        if mode == "good":
                            collector._take(body)  # before the answer: who has that may look
                        self.send_response(200 if mode == "good" else 403)
                        self.send_header("Content-Length", "0")
                        self.end_headers()

            def _flood(self) -> None:
                self.send_response(400)
                self.send_header("Content-Length", str(100_000_000))
                self.end_headers()
                piece = b"x" * 1_000_000
                try:
                    for _ in range(100):
                        self.wfile.write(piece)
                        collector.sent_bytes += len(piece)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._lease.release()
