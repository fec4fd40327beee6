"""
Generates ``config.example.yaml`` from the models: every setting with its text and its default. What squidbot
does anyway stands behind a ``#`` without a blank: take the ``#`` away to change it. What cannot be known
(addresses, a homeserver) has an example's value. Lines ``# like this`` are for people. The file loads as it
is, and also when every ``#`` without a blank is taken away; tests do both.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from gateway.settings import Settings
from gateway.settings.descriptions import nested_model, plain_type, section_text, setting_text
from gateway.settings.source import KeyPath, show_path

EXAMPLE = Path(__file__).resolve().parents[2] / "config.example.yaml"
"""Where it is kept in the repository."""

_WIDTH = 100
_HEAD = """\
# The configuration of squidbot: all settings. Made by `squidbot config example`; do not edit it here.
# Copy what you need into ~/.squidbot/squidbot.yaml (mode 0600), or let `squidbot init` ask you.
#
# "#key: value" shows a default; remove the # to change it. Everything else is an example.
# Any text may contain ${NAME} (an environment variable), ${file:/path} or ${secret:NAME} (a file NAME in the
# folder secrets beside this file, in /run/secrets, or among systemd's credentials); $${ is a literal ${.
# For completion in an editor, run squidbot config schema > squidbot.schema.json and begin the file with:
# yaml-language-server: $schema=squidbot.schema.json
"""
# A comment of exactly that form would already be obeyed by editors, and the file need not be there.
_HEAD = _HEAD.replace("# yaml-language-server:", "#   # yaml-language-server:")

_ACTIVE: dict[str, Any] = {
    "owner.aliases": ["@you:example.org", "you@example.org"],
    "channels.matrix.enabled": False,
    "channels.matrix.homeserver": "https://matrix.example.org",
    "channels.matrix.user_id": "@squid:example.org",
    "channels.matrix.password": "change-me",
    "channels.email.enabled": False,
    "channels.email.address": "squid@example.org",
    "channels.email.username": "squid@example.org",
    "channels.email.password": "change-me",
    "channels.email.imap.host": "imap.example.org",
    "channels.email.smtp.host": "smtp.example.org",
    "channels.email.trusted_authserv_ids": ["mx.example.org"],
}
"""Values that a person has to change, as they stand in the file."""

_SAMPLES: dict[str, Any] = {
    "llm.providers.NAME.api_base": "http://127.0.0.1:11434/v1",
    "llm.models.NAME.provider": "NAME",
    "llm.models.NAME.model": "openai/llama3.2",
    "llm.models.NAME.price.prompt_usd_per_million": 3.0,
    "llm.models.NAME.price.completion_usd_per_million": 15.0,
    "llm.pools": {"main": ["NAME"]},
    "people.bob.addresses": ["@bob:example.org", "bob@example.org"],
    "gateway.http.listen": "127.0.0.1:8811",
    "gateway.traces.endpoint": "http://127.0.0.1:4318/v1/traces",
    "gateway.http.hooks.grafana.secret": "a random text of at least 16 characters",
    "tools.web.search.provider": "searxng",
    "tools.web.search.url": "http://127.0.0.1:8888/",
    "tools.image.provider": "NAME",
    "tools.image.model": "openai/gpt-image-1",
    "tools.dav.url": "https://cloud.example.org/remote.php/dav/",
    "tools.dav.username": "you",
    "tools.dav.password": "an app password",
    "mcp.servers.clock.command": "mcp-server-time",
    "mcp.servers.clock.url": "https://mcp.example.org/mcp",
    "voice.transcribe.provider": "NAME",
    "voice.transcribe.model": "openai/whisper-1",
    "voice.speak.provider": "NAME",
    "voice.speak.model": "openai/gpt-4o-mini-tts",
    "channels.email.oauth.provider": "google",
    "channels.email.oauth.client_id": "your-own.apps.googleusercontent.com",
}
"""Values behind a ``#`` for what has no default."""

_NAMES = {
    "llm.providers": "NAME",
    "llm.models": "NAME",
    "channels.matrix.rooms": '"#name:example.org"',
    "people": "bob",
    "tools.policy": "execute",
    "gateway.http.hooks": "grafana",
    "mcp.servers": "clock",
}
"""How a mapping of names is shown: with one entry of this name."""

_INSTEAD = frozenset(
    {
        "channels.email.oauth",
        "channels.matrix.access_token",
        "channels.matrix.device_id",
        "mcp.servers.clock.url",
        "mcp.servers.clock.headers",
        "mcp.servers.clock.auth",
        "mcp.servers.clock.client_id",
        "mcp.servers.clock.client_secret",
        "mcp.servers.clock.scope",
    }
)
"""What cannot stand beside what is shown already: for people only."""


_NOT_TEXT = frozenset({"true", "false", "null", "on", "off", "yes", "no", "y", "n"})
"""Words that one YAML or another does not read as text."""


def example_text() -> str:
    """The whole file."""
    lines = [_HEAD]
    for name in Settings.model_fields:
        lines += _setting(Settings, (name,), indent=0, mark="")
        lines.append("")
    return "\n".join(line.rstrip() for line in lines)


def write_example() -> bool:
    """Update the kept file. Returns whether it was out of date."""
    text = example_text()
    if EXAMPLE.exists() and EXAMPLE.read_text(encoding="utf-8") == text:
        return False
    EXAMPLE.write_text(text, encoding="utf-8")
    return True


def _setting(model: type[BaseModel], path: KeyPath, *, indent: int, mark: str) -> list[str]:
    """One setting with its text; ``mark`` is what stands before what is not active."""
    name, shown = str(path[-1]), show_path(path)
    field = model.model_fields[name]
    if shown in _INSTEAD:
        mark = "# "
    inner = nested_model(field.annotation)
    lines = _comment(setting_text(model, name), indent)
    if inner is not None and shown not in _SAMPLES:
        is_list = get_origin(plain_type(field.annotation)) is tuple
        return lines + _section(inner, path, indent=indent, mark=mark, is_list=is_list)
    if shown in _ACTIVE and not mark:
        return [*lines, f"{' ' * indent}{_line(name, _ACTIVE[shown])}"]
    sample = _SAMPLES.get(shown, _default(field))
    return [*lines, f"{' ' * indent}{mark or '#'}{_line(name, sample)}"]


def _section(inner: type[BaseModel], path: KeyPath, *, indent: int, mark: str, is_list: bool) -> list[str]:
    name, shown = str(path[-1]), show_path(path)
    active = not mark and any(key.startswith(f"{shown}.") for key in _ACTIVE)
    # A key whose lines are all comments would be an empty value, which is none of a section.
    inside = mark if active else mark or "#"
    head = f"{' ' * indent}{inside}{name}:"
    lines = _comment(section_text(inner), indent)
    lines.append(head)
    step = indent + 2
    if shown in _NAMES:
        lines.append(f"{' ' * step}{inside}{_NAMES[shown]}:")
        path, step = (*path, _NAMES[shown].strip('"')), step + 2
    if is_list:
        return [*lines[:-1], f"{head} []", *_entry(inner, indent=step)]
    own = list(inner.__annotations__)  # in its own order, if it says something of all
    for each in own if inner.model_fields.keys() <= set(own) else inner.model_fields:
        lines += _setting(inner, (*path, each), indent=step, mark=inside)
    return lines


def _entry(inner: type[BaseModel], *, indent: int) -> list[str]:
    lines = []
    for number, name in enumerate(inner.model_fields):
        lines += _comment(setting_text(inner, name), indent)
        field = inner.model_fields[name]
        lead = "- " if number == 0 else "  "
        lines.append(f"{' ' * indent}# {lead}{_line(name, _default(field))}")
    return lines


def _comment(text: str, indent: int) -> list[str]:
    found = []
    for paragraph in text.replace("``", "`").split("\n\n") if text else ():
        found += [f"{' ' * indent}# {line}" for line in textwrap.wrap(paragraph, _WIDTH - indent)]
    return found


def _line(name: str, value: Any) -> str:
    return f"{name}: {_shown(value)}"


def _shown(value: Any) -> str:
    """A value in YAML of one line, which JSON is; words that YAML reads as they are go without quotes."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and value.replace("_", "a").isalpha() and value not in _NOT_TEXT:
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(_line(str(key), inner) for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=True)
    return None if value is PydanticUndefined else value
