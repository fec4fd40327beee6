"""
Loads the configuration, or reports everything that is wrong with it at once. The steps: the YAML with its
lines and references (`gateway.settings.source`), the types (`gateway.settings.settings`), then what only the
whole can show: names of pools, models and providers that do not exist. What is valid but probably a mistake
becomes a warning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import (
    ValidationError,
)

from agent_core.provenance import Trust
from agent_core.tools.effects import Effect
from agent_core.tools.policy import DEFAULT_POLICY, PolicyVerdict
from gateway.errors import ConfigInvalid
from gateway.plugins import channel_kinds, load_plugins
from gateway.settings.accounts import RESERVED
from gateway.settings.cross_checks import check_whole, permission_warnings
from gateway.settings.problems import explain, problems_of
from gateway.settings.settings import EffectName, PolicyRow, Settings, ToolSettings, settings_with
from gateway.settings.source import Problem, Source, read_source


def use_timezone(settings: Settings) -> None:
    """Let this process show local times in the configured zone, in its log too."""
    if settings.timezone != "local":
        os.environ["TZ"] = settings.timezone
        time.tzset()


def load_settings(
    path: Path, *, environ: Mapping[str, str] = os.environ, missing_ok: bool = False
) -> Settings:
    """Read a configuration, with ``missing_ok`` an empty one. Raises ConfigInvalid with all problems."""
    if missing_ok and not path.exists():
        return Settings()
    source = read_source(path, environ)
    settings, problems = _validate(source)
    if problems or settings is None:
        raise ConfigInvalid(explain(source, problems), file=str(path), problems=len(problems))
    settings._path, settings._source = path, source  # noqa: SLF001 - its own
    settings._secret_texts = frozenset(source.secret_texts)  # noqa: SLF001
    settings._warnings = (*permission_warnings(source), *_soft_warnings(settings))  # noqa: SLF001
    return settings


def _validate(source: Source) -> tuple[Settings | None, list[Problem]]:
    problems = list(source.problems)
    settings = None
    match source.data:
        case {"plugins": {"enabled": [*given]}}:
            enabled = [name for name in given if isinstance(name, str)]
        case _:
            enabled = []
    refused = load_plugins(enabled, {*RESERVED, *ToolSettings.model_fields})
    if refused:
        # Their own settings would be unknown keys: a second complaint about the same thing.
        return None, [
            Problem(("plugins", "enabled", number), str(refused[name]))
            for number, name in enumerate(enabled)
            if name in refused
        ]
    model = settings_with(enabled)
    if source.data or not problems:
        try:
            # A section of which all lines were removed is an empty one.
            sections = {name: value for name, value in source.data.items() if value is not None}
            settings = model.model_validate(sections)
        except ValidationError as error:
            # A value that could not be looked up is not complained about for what it is instead.
            missing = {problem.path for problem in problems} & source.referenced
            problems += [one for one in problems_of(error, source, model) if one.path not in missing]
        problems += check_whole(source)
    return settings, problems


def _vector_warnings() -> list[str]:
    from agent_core.storage.search_index.vectors import missing_for_vectors  # noqa: PLC0415 - only if chosen

    install = missing_for_vectors()
    return [f"memory.vectors: install the encoder with {install}; until then searches use words only"] * bool(
        install
    )


def _soft_warnings(settings: Settings) -> list[str]:
    found = list(settings.agents.heartbeat.warnings)
    if settings.memory.vectors:
        found += _vector_warnings()
    if settings.gateway.traces is not None:
        found += settings.gateway.traces.warnings
    kinds, places = settings.channels.kinds(), settings.channels.places()
    apart = settings.channels.separate_accounts()
    for name, config in settings.channels.enabled().items():
        found += [f"{places[name]}: {one}" for one in config.warnings]
        if channel_kinds()[kinds[name]].needs_http and settings.gateway.http is None:
            found.append(f"{places[name]}: nobody can reach it; set gateway.http.listen")
        own = {alias.channel for alias in settings.owner.aliases} & {name, kinds[name]}
        if name in apart and own == {kinds[name]}:
            found.append(
                f"{places[name]}: you are not the owner there, because this account "
                "identifies people by another homeserver, or by weaker checks, than the first one; if you "
                f"trust it, add {{channel: {name}, address: …}} to owner.aliases"
            )
            own = set()
        if not (own or config.admits_others):
            found.append(
                f"{places[name]}: nobody can talk to the bot; name people in allow_from or owner.aliases"
            )
    target = settings.agents.heartbeat.target.partition(":")[0]
    if target and target not in kinds:
        known = ", ".join(kinds) or "none"
        found.append(f"agents.heartbeat.target: there is no channel {target!r}; the channels are: {known}")
    if settings.llm.budget.usd_per_day:
        found += [
            f"voice.{name}: no price is set, so usd_per_day does not count it; set {key}"
            for name, part, key in (
                ("transcribe", settings.voice.transcribe, "usd_per_minute"),
                ("speak", settings.voice.speak, "usd_per_million_chars"),
            )
            if part is not None and part.price(settings.llm.providers) is None
        ]
        found += [
            f"llm.models.{name}: no price is set, so llm.budget.usd_per_day does not count it; set price, or "
            "limit tokens_per_day"
            for name in settings.llm.unpriced_models()
        ]
    found += _lenient(settings.tools.policy)
    if not settings.owner.aliases and settings.channels.enabled():
        found.append("owner.aliases is empty, so nobody is the owner; allow_from still lets people in")
    return found


def _lenient(policy: Mapping[EffectName, PolicyRow]) -> Iterator[str]:
    """Cells of ``tools.policy`` that let pass what the default asks about."""
    after = {Trust.KNOWN: " after another person's words", Trust.UNTRUSTED: " after words of anybody"}
    for name, row in policy.items():
        for trust, usual in DEFAULT_POLICY[Effect(name)].items():
            if getattr(row, trust.name.lower()) == "allow" and usual is not PolicyVerdict.ALLOW:
                yield (
                    f"tools.policy.{name}.{trust.name.lower()}: squidbot makes such a "
                    f"call{after.get(trust, '')} without asking, where the default asks "
                    "(docs/tools.md)"
                )
