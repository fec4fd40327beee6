"""
Connects to PostgreSQL, and runs squidbot's transactions on a connection. One statement sent with ``BEGIN``
sets the home and time limits and takes the locks, among them one shared by all writers on which recovery
waits. All ends with the transaction, so a pooler may reassign the connection
(https://www.pgbouncer.org/features.html, "transaction pooling"). A pooler is detected by the server's process
id; statements are then not prepared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo, sql
from psycopg.adapt import Buffer, Loader
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from gateway.store.sql.engine import ALONE, LEASES, Cursor, Parameters
from gateway.store.store_errors import Fenced

SCHEMA = "squidbot"
"""The schema that contains everything of squidbot's in a database."""
CONNECT_S = 5
_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "target_session_attrs": "read-write",
    "application_name": "squidbot",
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
_LIMITS = {
    "statement_timeout": "10s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "15s",
}
LEASE_IDLE_S = 3
"""
How long a transaction about leases may be idle. A process that is frozen in one, or loses its connection
without the server's noticing, keeps all others from renewing theirs.
"""
EXCLUSIVE_WAIT_S = 1
"""
How long a call waits for its exclusive lock before it lets the others pass and tries again: they queue behind
it, and the holder may be a frozen process.
"""
_LOCKS_AT_ONCE = 500
_STATEMENTS_AT_ONCE = 500
# squidbot survives a crash of the server: if that lost a claim, the next claim would get the same fence.
_SYNCED = sql.SQL(
    "; SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
FACTS = "squidbot.facts"
"""The setting in which the triggers of a transaction record what became true."""
TOO_MANY = "*"
"""The value of this setting if there were too many facts to record one by one."""


class _WholeText(StrDumper):
    """Replaces NUL in texts, which PostgreSQL cannot store."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class _Number(Loader):
    """Loads a ``numeric``, the type of a sum of integers."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class NoAddress(psycopg.ProgrammingError):
    """The URL cannot be parsed. The error omits its text, which may be a part of the password."""


def _parts(url: str) -> dict[str, Any]:
    """
    Parse a URL. Raises `NoAddress`.

    URLs that libpq would misread are refused: it takes a password's part after ``/`` or ``@`` for a host or
    database, and quotes it in errors.
    """
    found: dict[str, Any] = {}
    with suppress(psycopg.Error, UnicodeError):
        found = conninfo.conninfo_to_dict(url)
    place = url.partition("://")[2]
    before, at, after = place.partition("@")
    path = after.partition("?")[0]
    is_plain = "@" not in path and not (at and "/" in before and "?" not in before)
    ports = str(found.get("port") or "").split(",")
    if not found or not is_plain or not all(not port or port.isdigit() for port in ports):
        raise NoAddress(_meant_parameter(after if at else place))
    return found


def _meant_parameter(after: str) -> str:
    """Return the parameter of libpq that is misspelt behind the question mark; empty: nothing like that."""
    known = [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]
    for name, sign, _value in (each.partition("=") for each in after.partition("?")[2].split("&")):
        if sign and name not in known and (close := get_close_matches(name, known, n=1)):
            return close[0]  # not what stands there: it may be a part of the password
    return ""


def place_of(url: str) -> str:
    """Return the database as it may be shown: without a password or other parts of the URL."""
    try:
        parts = _parts(url)
    except NoAddress:
        return "postgresql://"
    port = f":{parts['port']}" if parts.get("port") else ""
    return (
        f"postgresql://{parts.get('host') or parts.get('hostaddr') or ''}{port}/{parts.get('dbname') or ''}"
    )


def _see_revoked(given: Mapping[str, Any]) -> None:
    """Check that a configured CRL exists; libpq connects without it. Raises OperationalError."""
    for name in ("sslcrl", "sslcrldir"):
        if not (named := given.get(name)):
            continue
        path = Path(named)
        try:
            found = any(
                b"BEGIN X509 CRL" in one.read_bytes()
                for one in (path.iterdir() if path.is_dir() else (path,))
            )
        except OSError:
            found = False
        if not found:
            raise psycopg.OperationalError(
                f"there is no list of revoked certificates in {named}, which {name} names"
            )


def connect(url: str, *, database: str | None = None, **more: str | int) -> psycopg.Connection:
    """Connect, to ``database`` of the same server if given. Raises psycopg.Error."""
    given = _parts(url)
    _see_revoked(given)
    db = psycopg.connect(
        url,
        autocommit=True,
        dbname=database,
        **{name: value for name, value in {**_DEFAULTS, **more}.items() if name not in given},  # type: ignore[arg-type]
    )
    db.adapters.register_dumper(str, _WholeText)
    db.adapters.register_dumper(int, Int8Dumper)
    db.adapters.register_loader("numeric", _Number)
    db.prepared_max = 300
    if is_pooled(db):
        db.prepare_threshold = None
    return db


def is_pooled(db: psycopg.Connection) -> bool:
    """Return True if a pooler is between us and the server."""
    found = db.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return found is None or found[0] != db.info.backend_pid


_HELD = sql.SQL(
    f"; SELECT EXISTS (SELECT 1 FROM {SCHEMA}.all_leases"  # noqa: S608 - constants
    " WHERE (home, name, holder, fence) = ({}, {}, {}, {}))"
)


class Transaction:
    """
    One transaction: implements `gateway.store.sql.engine.Connection`.

    It begins with the first statement, usually the call's locks.

    Args:
        home: The home whose rows it sees and creates.
        look_only: Read-only, over one state.
        needs: Name, holder and fence of the required lease.
        meets_recovery: A recovery waits for it.
    """

    def __init__(
        self,
        db: psycopg.Connection,
        home: int,
        *,
        look_only: bool = False,
        needs: tuple[str, str, int] | None = None,
        meets_recovery: bool = True,
    ) -> None:
        self._meets_recovery = meets_recovery and not look_only
        self._needs = needs
        self._db = db
        self._home = home
        self._look_only = look_only
        self._begun = False

    def execute(self, text: str, parameters: Parameters = (), /) -> Cursor:
        """Run a statement."""
        self._begin()
        return _Result(self._db.execute(translate(text), parameters))

    def executemany(self, text: str, parameters: Iterable[Parameters], /) -> Cursor:
        """
        Run a statement once for each of ``parameters``, many of them in one message.

        A pipeline would do that, too. But the server (15) does not end an idle transaction in a pipeline
        until another statement follows: a process that is frozen there would hold its locks forever.
        """
        each = list(parameters)
        if len(each) == 1:
            return self.execute(text, each[0])
        cursor, query, changed = psycopg.ClientCursor(self._db), translate(text), 0
        for first in range(0, len(each), _STATEMENTS_AT_ONCE):
            together = each[first : first + _STATEMENTS_AT_ONCE]
            self._begin()
            cursor.execute(
                "; ".join(cursor.mogrify(query, one) for one in together).encode(self._db.info.encoding)
            )
            changed += max(cursor.rowcount, 0)
            while cursor.nextset():
                changed += max(cursor.rowcount, 0)
        return _Result(cursor, changed)

    def lock(self, *names: str) -> None:
        """Wait until no other transaction of this home holds any of these names, and hold them."""
        for first in range(0, len(names), _LOCKS_AT_ONCE):
            taken = sql.SQL(", ").join(
                sql.SQL("pg_advisory_xact_lock(hashtextextended({}, {}))").format(
                    name.replace("\0", "\ufffd"), self._home
                )
                for name in names[first : first + _LOCKS_AT_ONCE]
            )
            self._begin(sql.SQL("SELECT {}").format(taken), names)

    def note(self, fact: str, of: str) -> None:
        """Fire a signal after the commit."""
        self.execute(f"SELECT {SCHEMA}.note(to_json(?::text), to_json(?::text))", (fact, of))

    def commit(self) -> str:
        """Commit; return what the triggers have recorded, or `TOO_MANY`. Not called after an error."""
        if not self._begun:
            return ""
        if self._look_only:
            self._db.execute("COMMIT", prepare=False)
            return ""
        cursor = self._db.execute(f"SELECT current_setting('{FACTS}', true); COMMIT", prepare=False)
        found = cursor.fetchone()
        return "" if found is None else str(found[0] or "")

    def undo(self) -> None:
        """Roll back."""
        if self._begun:
            self._db.execute("ROLLBACK", prepare=False)

    def _begin(self, then: sql.Composed | None = None, locks: Sequence[str] = ()) -> None:
        if self._begun:
            if then is not None:
                self._db.execute(then, prepare=False)
            return
        kind = (
            "ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            if self._look_only
            else "ISOLATION LEVEL READ COMMITTED"
        )
        settings = {**_limits(locks), "squidbot.home": str(self._home), "search_path": SCHEMA}
        first = sql.SQL("BEGIN {}; SELECT {}").format(
            sql.SQL(kind),
            sql.SQL(", ").join(
                sql.SQL("set_config({}, {}, true)").format(name, value) for name, value in settings.items()
            ),
        )
        if not self._look_only:
            first += _SYNCED
        if (
            self._meets_recovery and ALONE[0] not in locks
        ):  # two holders of the shared lock that then request it exclusively would deadlock
            first += sql.SQL("; SELECT pg_advisory_xact_lock_shared(hashtextextended({}, {}))").format(
                ALONE[0], self._home
            )
        # In one message to the server. The locks are a separate statement: later statements see what was
        # committed while it waited.
        if then is not None:
            first += sql.SQL("; ") + then
        if self._needs is not None:
            first += _HELD.format(self._home, *self._needs)
        self._begun = True
        begun = self._db.execute(first, prepare=False)
        if self._needs is not None:
            while begun.nextset():
                pass
            if begun.fetchone() != (True,):
                raise Fenced("another squidbot has taken over the database", operation="begin")


def _limits(locks: Sequence[str]) -> Mapping[str, str]:
    """Return the time limits of a transaction with these locks."""
    limits = dict(_LIMITS)
    if any(name.startswith(LEASES) for name in locks):
        limits["idle_in_transaction_session_timeout"] = f"{LEASE_IDLE_S}s"
    if ALONE[0] in locks:
        limits["lock_timeout"] = f"{EXCLUSIVE_WAIT_S}s"
    return limits


class _Result:
    """A cursor as the stores know it: a statement without rows has none to fetch."""

    __slots__ = ("_changed", "_cursor")

    def __init__(self, cursor: psycopg.Cursor[Any], changed: int | None = None) -> None:
        self._cursor = cursor
        self._changed = cursor.rowcount if changed is None else changed

    @property
    def rowcount(self) -> int:
        return max(self._changed, 0)  # -1: there was nothing to run

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self._cursor)


_SQL_PARTS = re.compile(
    r"""
    (?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<cast>::)
  | (?P<mark>\?)
  | :(?P<name>[a-z_]+)
  | (?P<percent>%)
  | (?P<conflict>\bON\ CONFLICT\s*\()
    """,
    re.VERBOSE,
)
_INSTEAD = {"mark": "%s", "percent": "%%", "conflict": "ON CONFLICT (home, "}


def _translated_part(match: re.Match[str]) -> str:
    kind = str(match.lastgroup)
    if kind == "name":
        return f"%({match['name']})s"
    return _INSTEAD.get(kind, match[0].replace("%", "%%"))


@lru_cache(maxsize=1024)
def translate(text: str) -> str:
    """
    Translate the queue's SQL, which is written once for both engines, to PostgreSQL's.

    The differences are few and mechanical: placeholders, the per cent sign, the home in the target of a
    conflict. Always run the result with parameters, even with empty ones.
    """
    return _SQL_PARTS.sub(_translated_part, text)
