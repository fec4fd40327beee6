"""Logins by a browser: what a homeserver says of its provider is not believed further than the homeserver itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent_core.oauth_http import HttpProvider
from channels.base import ChannelMisconfigured, ChannelUnavailable
from channels.matrix.client.browser_login import log_in_by_browser
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.config import MatrixConfig
from tests.clock import LoopClock

ENDPOINTS = (
    "token_endpoint",
    "registration_endpoint",
    "device_authorization_endpoint",
    "authorization_endpoint",
)


class Homeserver:
    """Says where its provider is."""

    def __init__(self, metadata):
        self._metadata = metadata
        self.credentials = None

    async def request(self, *_, **__):
        return HttpAnswer(200, self._metadata)


class Nobody:
    """Sees nothing and enters nothing."""

    def show(self, text):
        raise AssertionError(text)

    async def read_line(self):
        return ""


@pytest.mark.parametrize("open_one", [*ENDPOINTS, None])
async def test_no_token_goes_without_encryption(tmp_path, monkeypatch, open_one):
    """Behind a homeserver with TLS the provider has to have it, too; the control has it, and is asked."""
    asked = []

    async def register(_self, url, _metadata):
        asked.append(url)
        return {}

    monkeypatch.setattr(HttpProvider, "register", register)
    metadata = {
        name: f"http{'' if name == open_one else 's'}://auth.example.org/{name}" for name in ENDPOINTS
    }
    config = MatrixConfig.model_validate(
        {"homeserver": "https://example.org", "user_id": "@bot:example.org", "login": "browser"}
    )
    refusal = ChannelUnavailable if open_one is None else ChannelMisconfigured
    with pytest.raises(refusal, match="registers no client" if open_one is None else "without encryption"):
        await log_in_by_browser(
            config, Homeserver(metadata), tmp_path, LoopClock(datetime.now(UTC)), Nobody()
        )
    assert len(asked) == (open_one is None)
