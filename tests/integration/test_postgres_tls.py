"""TLS to the database with a private authority: what is not right is said in one sentence, and nobody is let by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tests.integration.test_postgres_refusals import CONFIGURATION, opened, squidbot
from tests.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.integration]
PAST = datetime.now(UTC) - timedelta(days=1)


@dataclass
class Secured:
    """A server with TLS that wants a certificate from clients without a password, and what is given to clients."""

    server: PostgresServer
    url: str
    authority: trustme.CA
    folder: Path

    def __post_init__(self) -> None:
        self.other = trustme.CA()
        self.authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        self.other.cert_pem.write_to_path(str(self.folder / "other.pem"))
        for name, issuer, person, ends in (
            ("mine", self.authority, "squidbot", None),
            ("bob", self.authority, "bob", None),
            ("stranger", self.other, "squidbot", None),
            ("old", self.authority, "squidbot", PAST),
        ):
            made = issuer.issue_cert(common_name=person, not_after=ends)
            made.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.crt"))
            made.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
            (self.folder / f"{name}.key").chmod(0o600)
        (self.folder / "open.key").write_bytes((self.folder / "mine.key").read_bytes())
        (self.folder / "open.key").chmod(0o644)
        (self.folder / "text").write_text("nothing of that kind\n")
        self.shows("127.0.0.1")

    def shows(self, name: str, ends: datetime | None = None) -> None:
        """The server has a certificate for this name from now on."""
        made = self.authority.issue_cert(name, not_after=ends)
        self.certificate = x509.load_pem_x509_certificate(made.cert_chain_pems[0].bytes())
        data = self.server.data
        for file, content in (
            ("server.crt", made.cert_chain_pems[0]),
            ("server.key", made.private_key_pem),
            ("root.crt", self.authority.cert_pem),
        ):
            content.write_to_path(str(data / file))
            (data / file).chmod(0o600)
            os.chown(data / file, data.stat().st_uid, data.stat().st_gid)
        self.server.restart()

    def revokes(self, *numbers: int, days: int = 1) -> None:
        """Make the list of revoked certificates; it is good for so many days."""
        now = datetime.now(UTC)
        key = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        issuer = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes()).subject
        made = x509.CertificateRevocationListBuilder().issuer_name(issuer)
        made = made.last_update(now - timedelta(days=3)).next_update(now + timedelta(days=days))
        for number in numbers:
            one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
            made = made.add_revoked_certificate(one)
        signed = made.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        (self.folder / "crl.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def named(self, *, root: str = "ca.pem", client: str = "", key: str = "", revoked: str = "") -> str:
        """The URL with these files; with a certificate of the client there is no password."""
        parameters = {
            "sslrootcert": root,
            "sslcert": client and f"{client}.crt",
            "sslkey": client and f"{key or client}.key",
            "sslcrl": revoked,
        }
        told = [f"&{name}={self.folder / file}" for name, file in parameters.items() if file]
        url = self.url.replace(f":{PASSWORD}", "") if client else self.url
        return f"{url}?sslmode=verify-full{''.join(told)}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with PostgresServer.start() as server:
        url = server.with_tables()
        with server.admin() as db:
            db.execute("ALTER SYSTEM SET ssl = on")
            db.execute("ALTER SYSTEM SET ssl_ca_file = 'root.crt'")
        yield Secured(server, url, trustme.CA(), tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def certified(secured: Secured) -> Iterator[None]:
    """The role is let in with a certificate alone."""
    rules = secured.server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"hostssl all squidbot 127.0.0.1/32 cert\n{before}")
    secured.server.restart()
    yield
    rules.write_text(before)
    secured.server.restart()


async def test_the_right_certificate_is_accepted(secured: Secured) -> None:
    """The control of all that follows: by the authority, and with a list of revoked ones that does not have it."""
    secured.revokes()
    for url in (secured.named(), secured.named(revoked="crl.pem")):
        assert await opened(url) == (0, "")
    with psycopg.connect(secured.named()) as db:
        found = db.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
        assert found == (True,)


CASES: dict[str, tuple[Callable[[Secured], str], str]] = {
    "no authority": (lambda it: it.named(root=""), "root certificate file"),
    "authority missing": (lambda it: it.named(root="nowhere.pem"), "nowhere.pem"),
    "authority is a text": (lambda it: it.named(root="text"), "could not read root certificate file"),
    "another authority": (
        lambda it: it.named(root="other.pem"),
        "of another authority than sslrootcert names",
    ),
    "list of revoked ones missing": (
        lambda it: it.named(revoked="nowhere.pem"),
        "nowhere.pem, which sslcrl names",
    ),
    "list of revoked ones is a text": (
        lambda it: it.named(revoked="text"),
        "no list of revoked certificates",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_without_a_reason_to_trust_nobody_connects(secured: Secured, case: str) -> None:
    url, words = CASES[case]
    found, told = await opened(url(secured))
    assert (found, words in told, "is not accepted" in told, "\n" in told) == (
        CONFIGURATION,
        True,
        True,
        False,
    ), told
    assert PASSWORD not in told


@pytest.mark.parametrize(("of", "days"), [("it", 1), ("nobody", -1)])
async def test_a_revoked_certificate_is_refused(secured: Secured, of: str, days: int) -> None:
    """So is any with a list that has expired: it may have been revoked since."""
    secured.revokes(*[secured.certificate.serial_number] * (of == "it"), days=days)
    found, told = await opened(secured.named(revoked="crl.pem"))
    assert (found, "was revoked" in told) == (CONFIGURATION, True), told


@pytest.mark.parametrize(
    ("name", "ends", "words"),
    [("db.example", None, "does not match host name"), ("127.0.0.1", PAST, "has expired")],
)
async def test_another_host_and_an_expired_certificate_are_refused(
    secured: Secured, tmp_path: Path, name: str, ends: datetime | None, words: str
) -> None:
    """By a start, a command and the daemon, with one sentence each."""
    secured.shows(name, ends)
    try:
        found, told = await opened(secured.named())
        assert (found, words in told) == (CONFIGURATION, True), told
        for command in ("run", "migrate"):
            code, said = squidbot(tmp_path / "home", secured.named(), command)
            assert (code, words in said, "Traceback" in said) == (CONFIGURATION, True, False), said
    finally:
        secured.shows("127.0.0.1")


CLIENTS = {
    "mine": ("mine", "", 0, ""),
    "none": ("nowhere", "mine", CONFIGURATION, "requires a valid client certificate"),
    "of somebody else": ("bob", "", CONFIGURATION, 'certificate authentication failed for user "squidbot"'),
    "of another authority": ("stranger", "", CONFIGURATION, "unknown ca"),
    "expired": ("old", "", CONFIGURATION, "certificate expired"),
    "key missing": ("mine", "nowhere", CONFIGURATION, "not private key file"),
    "key of another": ("mine", "bob", CONFIGURATION, "could not load private key file"),
    "key open to all": ("mine", "open", CONFIGURATION, "has group or world access"),
}


@pytest.mark.usefixtures("certified")
async def test_a_client_is_known_by_its_certificate(secured: Secured) -> None:
    for case, (client, key, code, words) in CLIENTS.items():
        found, told = await opened(secured.named(client=client, key=key))
        assert (found, words in told, "\n" in told) == (code, True, False), (case, told)


async def test_a_server_without_tls_is_refused(secured: Secured, postgres: PostgresServer) -> None:
    url = (
        f"{postgres.url(postgres.new_database())}?sslmode=verify-full&sslrootcert={secured.folder / 'ca.pem'}"
    )
    found, told = await opened(url)
    assert (found, "does not support SSL" in told) == (CONFIGURATION, True), told
