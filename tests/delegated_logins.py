"""A real Synapse that delegates its logins to an authorization server, as matrix.org and others do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from devservers import Synapse
from tests.doubles.authorization_server import AuthorizationServer
from tests.servers import skipped_without_tools


@pytest.fixture(scope="module")
def authorization_server() -> Iterator[AuthorizationServer]:
    """The authorization server."""
    server = AuthorizationServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def delegating_synapse(
    authorization_server: AuthorizationServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Synapse]:
    """A Synapse whose logins are the provider's business."""
    overrides = {
        "matrix_authentication_service": {
            "enabled": True,
            "endpoint": f"{authorization_server.url}/",
            "secret": authorization_server.secret,
        },
        "password_config": {"enabled": False},
    }
    with skipped_without_tools():
        server = Synapse.start(tmp_path_factory.mktemp("delegating"), overrides=overrides)
    authorization_server.synapse = server.url
    with server:
        yield server


@pytest.fixture
def delegated_bot(delegating_synapse: Synapse, authorization_server: AuthorizationServer) -> Iterator[str]:
    """The localpart of a new account, which has one login; afterwards the provider is as it was."""
    localpart = f"bot-{secrets.token_hex(4)}"
    authorization_server.register(localpart)
    yield localpart
    authorization_server.lifetime_s, authorization_server.device_codes = 300, True
