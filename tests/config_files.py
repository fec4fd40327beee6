"""A configuration file with something in every part, and what reading such files gives or complains of."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigInvalid
from gateway.settings import load_settings

CANARY = "c4n4ry-s3cr3t"

FULL = """\
owner:
  aliases: ["@alice:hs.test", "alice@mail.test", {channel: email, address: "a@other.test"}]
llm:
  default_pool: main
  limits: {steps: 5}
  providers:
    local: {api_base: "http://127.0.0.1:9999/v1", api_key: "${LLM_KEY}"}
  models:
    small: {provider: local, model: "openai/some-model", max_tokens: 1024, max_context_tokens: 32000}
  pools:
    main: [small]
agents:
  workspace: workspace
  restrict_to_workspace: true
  consolidation_threshold: 100
  keep_recent_ratio: 0.2
  consolidation_pool: ""
  heartbeat:
    enabled: true
    interval_minutes: 30
    active_hours_start: 08:00
    active_hours_end: 22:30
    timezone: Europe/Berlin
    pool: ""
channels:
  matrix:
    enabled: true
    homeserver: "http://127.0.0.1:8008"
    user_id: "@bot:hs.test"
    password: "${file:secret}"
    allow_from: ["@alice:hs.test"]
    group_policy: mention
    batching: merge
  email:
    enabled: true
    address: "bot@mail.test"
    username: "bot@mail.test"
    password: "$${literal} and more"
    imap: {host: 127.0.0.1, port: 1993, security: tls}
    smtp: {host: 127.0.0.1, port: 1587, security: starttls}
    allow_from: ["alice@mail.test"]
    trusted_authserv_ids: ["mail.test"]
    sender_verification: off
    limits: {sender_per_hour: 10, sender_per_day: 40}
gateway:
  http: {listen: "127.0.0.1:8811"}
  log: {level: debug, format: json, file: logs/squidbot.log}
  max_concurrent_turns: 2
  durability: process
skills:
  always: [memory]
"""


def write(folder, text, *, mode=0o600):
    path = folder / "squidbot.yaml"
    path.touch(mode=mode)
    path.write_text(text)
    path.chmod(mode)
    return path


def loaded(folder, text, environ=None, **options):
    return load_settings(write(folder, text, **options), environ=environ or {})


def complaints(folder, text, environ=None):
    with pytest.raises(ConfigInvalid) as caught:
        loaded(folder, text, environ)
    assert caught.value.exit_code == 78
    return str(caught.value)


def complaint(folder, text, environ=None):
    head, *lines = complaints(folder, text, environ).splitlines()
    assert head == f"{folder / 'squidbot.yaml'}: 1 problem", [head, *lines]
    return lines[0].strip()
