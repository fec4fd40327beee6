"""
Renamed keys: an old key is refused, and the message names the new one.

`with_new_names` looks at the whole file, also inside a section whose own name is old, so that a person moves
to the new names in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.settings.source import KeyPath, Problem

_BREAKER = "channels.email.circuit_breaker"

RENAMED: Mapping[str, str] = {
    "agents.approval_minutes": "tools.approval_timeout_minutes",
    "agents.approve_tools": "tools.require_approval",
    "agents.heartbeat.dead_man_intervals": "agents.heartbeat.alert_after_missed",
    "agents.heartbeat.repeat_after_hours": "agents.heartbeat.dedupe_hours",
    "agents.schedule.late": "agents.schedule.misfire",
    "agents.schedule.late_after_minutes": "agents.schedule.misfire_grace_minutes",
    "channels.email.approval": "channels.email.reply_approval",
    "channels.email.brake": _BREAKER,
    f"{_BREAKER}.closed_minutes": f"{_BREAKER}.open_minutes",
    "channels.email.max_answer_mb": "channels.email.max_reply_mb",
    "channels.email.plus_sessions": "channels.email.subaddress_sessions",
    "channels.email.queue": "channels.email.batching",
    "channels.email.quote": "channels.email.quote_original",
    "channels.email.read_only_from": "channels.email.ingest_only_from",
    "channels.email.secret_tags": "channels.email.subaddress_secrets",
    "channels.matrix.acknowledge": "channels.matrix.ack_reactions",
    "channels.matrix.approval": "channels.matrix.reply_approval",
    "channels.matrix.devices": "channels.matrix.trust_devices",
    "channels.matrix.group_context.people": "channels.matrix.group_context.senders",
    "channels.matrix.group_talk": "channels.matrix.group_context",
    "channels.matrix.queue": "channels.matrix.batching",
    "gateway.http.page": "gateway.http.status_page",
    "llm.models.*.first_token_limit_s": "llm.models.*.first_token_timeout_s",
    "llm.models.*.idle_limit_s": "llm.models.*.idle_timeout_s",
    "llm.models.*.total_limit_s": "llm.models.*.total_timeout_s",
}
"""Old key to new key, with ``*`` for a name that people choose; the sections around both are the new ones."""

_NOTES = {"channels.matrix.ack_reactions": ", which is true or false"}


_LIMITS = "is gone, and nothing takes its place; remove this line"
_REMOVED = {
    "tools.shell.image": "is gone, and so is the back end `container`; remove this line",
    "channels.email.limits.thread_per_hour": _LIMITS,
    "channels.email.limits.total_per_hour": _LIMITS,
    f"{_BREAKER}.identical_answers": _LIMITS,
    f"{_BREAKER}.max_identical_replies": _LIMITS,
    f"{_BREAKER}.bounces_per_hour": _LIMITS,
}


def with_new_names(problems: list[Problem], data: Mapping[str, Any]) -> list[Problem]:
    """The problems, in which each old key is reported once, with its new name."""
    renamed = list(_renamed(data, (), ""))
    old = [problem.path for problem in renamed]
    kept = [each for each in problems if not any(each.path[: len(path)] == path for path in old)]
    return kept + renamed


def _renamed(value: Any, path: KeyPath, known_as: str) -> Iterator[Problem]:
    """``path`` is as it stands in the file, ``known_as`` as it would be called now."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _renamed(item, (*path, number), known_as)
    elif isinstance(value, dict):
        for key, inner in value.items():
            called = f"{known_as}.{'*' if known_as == 'llm.models' else key}".removeprefix(".")
            if called in _REMOVED:
                yield Problem((*path, key), _REMOVED[called])
            new = RENAMED.get(called)
            if new is not None:
                yield Problem((*path, key), _sentence(called, new))
            yield from _renamed(inner, (*path, key), new or called)


def _sentence(old: str, new: str) -> str:
    section, _, name = new.rpartition(".")
    moved = section != old.rpartition(".")[0]
    return f'is called "{new if moved else name}" now{_NOTES.get(new, "")}'
