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
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, ToolsMissing
from tests.doubles.object_server import Gate, ObjectServer

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer


@contextmanager
def skipped_without_tools() -> Iterator[None]:
    """Skip a test whose servers cannot be installed here."""
    try:
        yield
    except ToolsMissing as missing:
        pytest.skip(str(missing))


def own_mail_server(*names: str, count: int, password: str = "pw") -> Callable[..., Iterator[MailServer]]:
    """
    A mail server of a module's own, as a fixture: it begins with ``name0 …``, because a new user takes a second.

    ``{name}`` in a password is the name.
    """

    @pytest.fixture(scope="module")
    def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
        users = {f"{name}{number}": password.format(name=name) for name in names for number in range(count)}
        with skipped_without_tools():
            server = MailServer.start(tmp_path_factory.mktemp("mail"), users=users)
        with server:
            yield server

    return start


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    """The session's homeserver, with room version 12 as default."""
    with skipped_without_tools():
        server = Synapse.start(tmp_path_factory.mktemp("synapse"), say=print)
    with server:
        yield server


@pytest.fixture(scope="session")
def mail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    """The session's mail server: Dovecot where it is installed, otherwise pymap."""
    with skipped_without_tools():
        server = MailServer.start(tmp_path_factory.mktemp("mail"), say=print)
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's PostgreSQL; a test that wants it makes a database of its own."""
    from tests.postgres_server import PostgresServer

    with skipped_without_tools():
        server = PostgresServer.start()
    with server:
        yield server


@pytest.fixture(scope="session")
def tables(postgres: PostgresServer) -> str:
    """A database with squidbot's tables, of which those of the tests are copies."""
    from gateway.store.postgres.postgres_queue import migrate

    name = postgres.new_database()
    migrate(postgres.url(name))
    return name


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
