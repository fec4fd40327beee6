"""Numbers that the pages tell are those of the code: limits, defaults, times."""

from __future__ import annotations

from pathlib import Path

from agent_core.children.rights import Ceilings as SandboxLimits
from agent_core.media.media_config import ImageSettings, SpeakSettings, TranscribeSettings
from agent_core.tools import deferred
from agent_core.tools.files import journaled_files
from agent_core.tools.mcp import definitions, mcp_tool, server_connection
from agent_core.tools.mcp import definitions as mcp_limits
from agent_core.tools.shell.proxy import ProxyLimits
from agent_core.tools.web import pdf, pdf_child, web_fetch
from agent_core.tools.web.web_client import WebLimits
from channels.attachments import attachment_store, object_storage
from gateway.app import daemon
from gateway.proactive import background_jobs
from gateway.settings import Settings
from gateway.store.lease import LeaseTimes
from gateway.store.postgres.postgres_connection import _LIMITS, LEASE_IDLE_S
from gateway.store.sql import receipt_store
from gateway.system import clock
from gateway.turns.questions import question_text

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Settings()
IN_WORDS = {1: "one", 3: "three", 5: "five", 10: "ten", 11: "eleven", 20: "twenty", 30: "half an hour"}


def default(model, name):
    return model.model_fields[name].default


JOBS, SHARES = SETTINGS.tools.jobs.limits, SETTINGS.llm.budget.shares
TOLD = [
    ("voice.md", "`max_chars` ({:,}", default(SpeakSettings, "max_chars")),
    ("voice-messages.md", "`max_seconds` ({:g})", default(TranscribeSettings, "max_seconds")),
    ("voice-messages.md", "`max_mb` ({:g})", default(TranscribeSettings, "max_mb")),
    ("voice-messages.md", "`idle_minutes` ({:g})", default(TranscribeSettings, "idle_minutes")),
    ("images.md", "`max_per_turn` ({})", default(ImageSettings, "max_per_turn")),
    ("images.md", "`max_mb` ({:g})", default(ImageSettings, "max_mb")),
    ("images.md", "`timeout_s` ({:g})", default(ImageSettings, "timeout_s")),
    ("models.md", "`agents.consolidation_tokens` ({})", SETTINGS.agents.consolidation_tokens),
    ("models.md", "check-ins ({:g} %)", SHARES.heartbeat * 100),
    ("models.md", "consolidation ({:g} %)", SHARES.consolidation * 100),
    ("models.md", "(at {:g} %, whoever has spent it)", SHARES.others * 100),
    ("background-jobs.md", "`tools.jobs.limits` ({} model calls, half an hour", JOBS.steps),
    ("background-jobs.md", "{:,} tokens)", JOBS.tokens),
    ("background-jobs.md", "Ten of one conversation and {} of one person", IN_WORDS[background_jobs._OPEN_OF_PERSON]),
    ("web.md", "parts of {:,} characters", web_fetch._SHOWN_CHARS),
    ("web.md", "A fetch ends after {:g} seconds", WebLimits().total_s),
    ("web.md", "{} redirects", WebLimits().redirects),
    ("web.md", "{:g} seconds of silence", WebLimits().silence_s),
    ("web.md", "with {:g} seconds and", pdf._SECONDS),
    ("web.md", "and {:g} MB", pdf_child._MEMORY_BYTES / 1e6),
    ("web.md", "({:g} million bytes", SETTINGS.tools.web.max_mb),
    ("shell-sandbox.md", "more than {:g} MB of output", SandboxLimits().output_bytes / 1e6),
    ("shell-sandbox.md", "the first and the last {:g} kB", SandboxLimits().head_bytes / 1e3),
    ("shell-network.md", "{} connections at once", ProxyLimits().at_once),
    ("shell-network.md", "at once, {:,} in all", ProxyLimits().connections),
    ("shell-network.md", "{} names", ProxyLimits().names),
    ("files.md", "keep_days: {:g}", SETTINGS.tools.files.keep_days),
    ("files.md", "{:g} MB for each write", journaled_files.MAX_WRITE_BYTES / 1e6),
    ("files.md", "{:g} MB for files that can be moved", journaled_files.MAX_FILE_BYTES / 1e6),
    ("tools.md", "the newest {}, also across restarts", deferred.KEPT),
    ("answering-questions.md", "longer than {:,} characters", question_text._QUOTED_CHARS),
    ("tools.md", "keeps it for {:g} days", receipt_store.KEPT_S / 86_400),
    ("mcp.md", "{} MB and ", mcp_limits.MAX_BYTES // 1_000_000),
    ("mcp.md", "and {:,} parts", mcp_limits.MAX_PARTS),
    ("mcp.md", "| {}, then", mcp_limits._FLOOD_MESSAGES),
    ("mcp.md", "then {:g} a second", mcp_limits._MESSAGES_PER_S),
    ("mcp.md", "| {}; descriptions", definitions.MAX_TOOLS),
    ("mcp.md", "descriptions of {:,} characters", definitions._DESCRIPTION_CHARS),
    ("mcp.md", "schemas of {:,}", definitions._SCHEMA_CHARS),
    ("mcp.md", "| {:,} characters; the whole", mcp_tool._SHOWN_CHARS),
    ("mcp.md", "waiting | {}, ", server_connection._MAX_AT_ONCE),
    ("mcp.md", ", {} |", server_connection._MAX_WAITING),
    ("attachments.md", "A request takes at most {:g} s", object_storage._REQUEST_LIMIT_S),
    ("attachments.md", "for {} minutes a message", IN_WORDS[object_storage._LATE_S / 60]),
    ("attachments.md", "not answered for {:g} s", attachment_store._LIMIT_S),
    ("postgres-cases.md", "waits for {} minutes", IN_WORDS[daemon._DATABASE_WAIT_S / 60]),
    ("postgres.md", "the server lets go after {} seconds", _LIMITS["idle_in_transaction_session_timeout"].removesuffix("s")),
    ("postgres.md", "if that was its lease, after {}", IN_WORDS[LEASE_IDLE_S]),
    ("postgres.md", "wrong by {} seconds or more", IN_WORDS[clock._LOGGED_STEP_S]),
    ("scaling.md", "The lease lasts {:g} seconds", LeaseTimes().ttl_s),
    ("scaling.md", "is renewed every {}", IN_WORDS[LeaseTimes().renewed_s]),
    ("service.md", "reached the database for {:g} seconds", LeaseTimes().lost_s),
]  # fmt: skip


def _page(name):
    """Its text, however its lines are broken."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_pages_tell_the_numbers_of_the_code():
    """As they are written there, with a few words around them."""
    assert [
        (page, text.format(value)) for page, text, value in TOLD if text.format(value) not in _page(page)
    ] == []


def test_another_number_is_noticed():
    """The control: no place takes any number."""
    others = [
        (page, text.format(f"{value}s" if isinstance(value, str) else value * 7 + 1))
        for page, text, value in TOLD
    ]
    assert [(page, text) for page, text in others if text in _page(page)] == []
