"""
Maps the server's errors: it refuses for now (`StoreUnavailable`), two calls conflicted and are retried, or
the code is wrong.
"""

from __future__ import annotations

import re

import psycopg

from gateway.store.postgres.postgres_connection import NoAddress
from gateway.store.store_errors import StoreUnavailable, StoreUnusable

_NO_RIGHTS = "42501"
_AGAIN = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock timeout."""
_MEANINGS = {
    "08": "the database cannot be reached",
    "25006": "the database server takes no writes",
    "53": "the database server has no room left",
    "53100": "the disk of the database server is full",
    "53300": "the database server has no connection left",
    "57": "the database server has ended the call",
    "58": "the disk of the database server reports an error",
    "28": "the database server does not let squidbot in",
    "3D": "the database does not exist",
}


def _meaning(error: psycopg.Error) -> str | None:
    state = error.sqlstate
    if state is None:
        return _MEANINGS["08"] if isinstance(error, psycopg.OperationalError) else None
    return _MEANINGS.get(state) or _MEANINGS.get(state[:2])


def is_conflict(error: psycopg.Error) -> bool:
    """Return True if the call conflicted with another and had no effect: it can be retried at once."""
    return error.sqlstate in _AGAIN


def is_connection_lost(error: psycopg.Error) -> bool:
    """Return True if the server, or the network, has ended the connection."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05", "25P03")


def is_unavailable(error: psycopg.Error) -> bool:
    """Return True if the server refuses for now, rather than because of a defect of ours."""
    return is_conflict(error) or is_connection_lost(error) or _meaning(error) is not None


def unavailable(error: psycopg.Error, where: str, operation: str) -> Exception:
    """Return the error for the caller, a defect's unchanged; ``where`` has no password."""
    if error.sqlstate == _NO_RIGHTS:
        return missing_rights_error(where, " ".join(str(error.diag.message_primary or error).split()))
    if not is_unavailable(error):
        return error
    said = " ".join(str(error.diag.message_primary or error).split())
    meaning = _meaning(error) or "the database is busy"
    return StoreUnavailable(
        f"{meaning}: {said}", path=where, operation=operation, sqlstate=error.sqlstate or ""
    )


# libpq has no code for the server's answer to a connection attempt, so the text must do. Unknown texts count
# as temporary: a retry gets the same answer.
_FOR_GOOD = re.compile(
    r"password authentication failed|no password supplied|authentication failed|does not exist"
    r"|no pg_hba\.conf entry|is not permitted to log in|permission denied"
    r"|invalid (?:URI|connection option|port|integer|sslmode)|certificate|requested session is not read-only"
    r"|private key file|unknown ca|does not support SSL"
)
_NOT_TRUSTED = re.compile(
    r"certificate verify failed|does not match host name|root certificate file|of revoked certificates"
)
_WHY = (
    ". It is of another authority than sslrootcert names, has expired, or was revoked, or the list of revoked"
    " ones (sslcrl) has expired"
)
_NO_ADDRESS = (
    "gateway.store is no address of a PostgreSQL database. In user, password and database the signs"
    " % / @ : ? # and blanks are written as %25 %2F %40 %3A %3F %23 %20; behind a question mark only"
    " parameters of libpq may stand."
)
_MISSPELT = (
    "gateway.store is no address of a PostgreSQL database: behind the question mark stands something that is"
    " no parameter of libpq. Did you mean {}?"
)
_READ_ONLY = re.compile(r"session is read-only|hot standby|not in read-write")


def missing_rights_error(where: str, said: str) -> StoreUnusable:
    """Return the error for a role that lacks rights; ``said`` names them."""
    return StoreUnusable(
        f"The role of {where} may not work with squidbot's tables: {said}. Let it own them, as the role does"
        " that ran `squidbot migrate`.",
        path=where,
    )


def open_error(error: psycopg.Error, where: str, operation: str) -> Exception:
    """Return the error to raise when the database cannot be opened: temporary or permanent."""
    if isinstance(error, NoAddress):
        return StoreUnusable(_MISSPELT.format(error) if str(error) else _NO_ADDRESS, path=where)
    said = " ".join(str(error.diag.message_primary or error).split())
    if _READ_ONLY.search(said):
        return StoreUnavailable(
            f"{where} takes no writes; it may be a replica.", path=where, operation=operation
        )
    if isinstance(error, psycopg.OperationalError) and _NOT_TRUSTED.search(said):
        why = _WHY if "verify failed" in said else ""
        return StoreUnusable(
            f"The certificate of the server of {where} is not accepted: {said}{why}.", path=where
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None and _FOR_GOOD.search(said):
        return StoreUnusable(f"The server does not let squidbot into {where}: {said}", path=where)
    return unavailable(error, where, operation)
