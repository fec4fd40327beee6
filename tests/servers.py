"""
Real servers for tests: one Synapse, one mail server and one PostgreSQL per session, fresh users or a fresh database
per test.

A server is started by the first test that wants it. Tests must not count on being alone on it: they use
fresh users and look only at those. A test that kills, freezes or reconfigures a server starts its own.

What a server is made of is installed into squidbot's cache on first use. When it cannot be installed, the
tests that need it skip and say why.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, ToolsMissing
from tests.doubles.object_server import Gate, ObjectServer

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    """The session's homeserver, with room version 12 as default."""
    try:
        server = Synapse.start(tmp_path_factory.mktemp("synapse"), say=print)
    except ToolsMissing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """The session's mail server: Dovecot where it is installed, otherwise pymap."""
    try:
        server = MailServer.start(tmp_path_factory.mktemp("mail"), say=print)
    except ToolsMissing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's PostgreSQL; a test that wants it makes a database of its own."""
    from tests.postgres_server import PostgresServer

    try:
        server = PostgresServer.start()
    except ToolsMissing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def fresh_credentials(synapse: Synapse) -> Callable[[str], Credentials]:
    """Registers a new Matrix user whose localpart begins with the given name."""

    def register(name: str) -> Credentials:
        return synapse.register(f"{name}-{secrets.token_hex(4)}", f"{name}-pw")

    return register


@pytest.fixture
def fresh_user(
    synapse: Synapse, fresh_credentials: Callable[[str], Credentials]
) -> Callable[[str], MatrixPeer]:
    """Registers a new Matrix user and gives its client."""

    def make(name: str) -> MatrixPeer:
        return MatrixPeer.of(synapse.url, fresh_credentials(name))

    return make


@pytest.fixture
def fresh_mailbox(mail_server: MailServer) -> Callable[[str], MailPeer]:
    """Adds a new mail user whose name begins with the given one, and gives its mail program."""

    def make(name: str) -> MailPeer:
        user = f"{name}-{secrets.token_hex(4)}"
        mail_server.add_user(user, f"{name}-pw")
        return mail_server.peer(user)

    return make


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """The session's S3-compatible store."""
    with ObjectServer(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def gate(object_server: ObjectServer) -> Iterator[Gate]:
    """Stands before the session's store, and can misbehave."""
    made = Gate(object_server.url)
    yield made
    made.close()
