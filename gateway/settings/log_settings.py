"""The settings of what the daemon tells operators about itself: its log, and traces of its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from gateway.settings.problems import is_loopback


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LogSettings(_Strict):
    """
    ``file`` is relative to the home folder. It is rotated at ``max_file_mb`` (millions of bytes);
    ``keep_files`` older files are kept.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level."""
    format: Literal["auto", "json", "text"] = "auto"
    """``auto``: text on a terminal, JSON elsewhere."""
    file: str | None = Field(default=None, min_length=1)
    max_file_mb: float = Field(default=10.0, ge=0.01, le=10_000)
    keep_files: int = Field(default=5, ge=1, le=1000)


class TraceSettings(_Strict):
    """
    Traces of turns, model calls, tool calls and deliveries, sent to an OpenTelemetry collector; needs
    ``pip install '.[otel]'``.
    """

    endpoint: str = Field(pattern=r"^https?://[^\s?#@]+$")
    """The collector's address for traces by OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request, such as ``Authorization``."""
    contents: bool = False
    """If true, traces also have what people, tools and models say; only secrets are masked."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return warnings about a missing library, and about words that anybody on the way can read."""
        from gateway.observability.traces import missing_for_traces  # noqa: PLC0415 - loads the store

        found, address = [], urlsplit(self.endpoint)
        if missing := missing_for_traces():
            found.append(f"gateway.traces: install OpenTelemetry with {missing}; until then nothing is sent")
        if self.contents and address.scheme == "http" and not is_loopback(address.hostname or ""):
            found.append("gateway.traces.contents: conversations are sent unencrypted; use https")
        return found
