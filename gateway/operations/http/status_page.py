"""
The page itself. It shows what ``squidbot status`` shows without reasons: states, counts, the bot's own
addresses; never what people wrote or who they are. Everything that is put into it is escaped.

It is served to this machine only (the setting refuses anything else), under this machine's own names only (so
that no web page can read it by pointing a name of its own here), and a content security policy forbids
everything but the one style that stands in it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

import anyio
import structlog
from aiohttp import web

from agent_core.ports import Clock
from gateway.operations.http.charts import ChartLine, chart
from gateway.operations.http.samples import DAY_S, DayHistory, Sample
from gateway.system.durations import duration

_LIMIT_S = 5.0
_DAY = timedelta(seconds=DAY_S)
_STYLE = """\
:root{color-scheme:light dark;--bg:#fff;--fg:#1d2329;--dim:#66707a;--rule:#dde2e7;--a:#0b6bcb;--b:#c2410c;
--good:#157f3d;--bad:#b91c1c;--warn:#a16207}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e6eaee;--dim:#98a3ad;--rule:#2c343b;--a:#5eb0ff;
--b:#ff9a5c;--good:#4ade80;--bad:#f87171;--warn:#facc15}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:0 auto;
padding:1.2rem}
h1{font-size:1.3rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
small,.dim{color:var(--dim);font-weight:400}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;
border-bottom:1px solid var(--rule);vertical-align:top}th{font-weight:600;color:var(--dim)}
.up{color:var(--good)}.down,.failed{color:var(--bad)}.connecting,.catching_up{color:var(--warn)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1rem}
figure{margin:0;position:relative}figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{fill:var(--dim);font-size:11px}.grid{stroke:var(--rule)}polyline{fill:none;stroke-width:1.8}
.l0{stroke:var(--a)}.l1{stroke:var(--b)}.k0{color:var(--a)}.k1{color:var(--b)}
.none{position:absolute;top:40%;width:100%;text-align:center;color:var(--dim);margin:0}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_REFRESH_S = 30


class StatusPage:
    """Serves the page; ``stuck`` returns why turns stall, or None."""

    def __init__(
        self,
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        history: DayHistory,
        clock: Clock,
        *,
        stuck: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._status = status
        self._history = history
        self._clock = clock
        self._stuck = stuck

    def routes(self) -> list[web.AbstractRouteDef]:
        """The one route."""
        return [web.get("/", self._page)]

    async def _page(self, _request: web.Request) -> web.Response:
        report: Mapping[str, Any] | None = None
        try:
            with anyio.fail_after(_LIMIT_S):
                report = await self._status()
        except Exception as error:  # noqa: BLE001 - the page says so
            structlog.get_logger(__name__).warning("web.page_failed", error=type(error).__name__)
        text = render(report, self._history.samples(), now=self._clock.now(), stuck=self._stuck())
        code = 200 if report is not None else 503
        return web.Response(
            text=text, status=code, content_type="text/html", charset="utf-8", headers=_HEADERS
        )


def render(
    report: Mapping[str, Any] | None, samples: Sequence[Sample], *, now: datetime, stuck: str | None = None
) -> str:
    """The whole page. Without a report it says that there is none."""
    body = ["<p>The status is not available at the moment.</p>"] if report is None else _sections(report, now)
    if stuck is not None:
        body.insert(0, f'<p class="down">Turns are stalled: {escape(stuck)}.</p>')
    body += ["<h2>The last day</h2>", f'<div class="charts">{day_charts(samples, now)}</div>']
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>squidbot</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="{_REFRESH_S}">'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _sections(report: Mapping[str, Any], now: datetime) -> list[str]:
    work = report["work"]
    up = "" if report.get("uptime_s") is None else f", up {duration(report['uptime_s'])}"
    memory = f", {report['memory_mb']:g} MB" if report.get("memory_mb") else ""
    said = f"{escape(str(report['version']))}{up}{memory}, at {now:%Y-%m-%d %H:%M:%S} UTC"
    head = f"<h1>squidbot <small>{said}</small></h1>"
    channels = [
        (
            escape(name),
            escape(str(one.get("account") or "")),
            f'<span class="{escape(one["state"])}">{escape(one["state"].replace("_", " "))}</span>',
            escape(str(one["since"])[:16].replace("T", " ")),
            str(int(one.get("restarts") or 0)),
        )
        for name, one in (report.get("channels") or {}).items()
    ]
    queue = [
        ("inbox", _counts(work["inbox"]), duration(work.get("oldest_unanswered_s"))),
        ("outbox", _counts(work["outbox"]), duration(work.get("oldest_unsent_s"))),
    ]
    asked = {
        "calls": work.get("waiting_for_yes") or 0,
        "drafts": work["outbox"].get("held") or 0,
        "in quarantine": work["inbox"].get("quarantined") or 0,
    }
    if work.get("oldest_question_s") is not None:
        told = f"{_counts(asked)} (!approve, or squidbot inbox list --held)"
        queue.append(("questions to you", told, duration(work["oldest_question_s"])))
    dead = [
        (escape(str(one["name"])), escape(str(one["channel"])), escape(str(one["what"])))
        for one in report.get("stuck") or []
    ]
    parts = [
        head,
        "<h2>Channels</h2>",
        _table(("channel", "account", "state", "since (UTC)", "restarts"), channels),
        "<h2>Queue</h2>",
        _table(("", "rows", "oldest waiting"), queue),
        "<h2>Dead letters</h2>",
    ]
    if dead:
        hint = (
            '<p class="dim">squidbot inbox show ID shows the details; squidbot inbox retry ID and '
            "squidbot inbox drop ID settle it.</p>"
        )
        return [*parts, _table(("id", "channel", "what"), dead), hint]
    return [*parts, '<p class="dim">none</p>']


def day_charts(samples: Sequence[Sample], now: datetime) -> str:
    """The charts of the last day, as SVG."""

    def line(name: str, value: Callable[[Sample], float | None]) -> ChartLine:
        return ChartLine(name, [(one.at, value(one)) for one in samples])

    return "".join(
        chart(title, lines, until=now, span=_DAY, unit=unit)
        for title, unit, lines in (
            ("Queue", "", [line("unanswered", lambda s: s.waiting), line("unsent", lambda s: s.unsent)]),
            ("Answers in five minutes", "", [line("answers", lambda s: s.turns)]),
            ("Time to an answer", " s", [line("average", lambda s: s.latency_s)]),
            (
                "Tokens in five minutes",
                "",
                [line("read", lambda s: s.prompt_tokens), line("written", lambda s: s.completion_tokens)],
            ),
        )
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "empty")
