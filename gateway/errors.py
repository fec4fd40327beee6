"""
The errors that stop the gateway, and `describe`, which reads any error of the project.

Each package has a root of its own (the import directions forbid a common base), but all share one shape:
``temporary`` (can trying again help?), ``public`` (what a stranger may read) and ``fields`` (for the log).
`describe` makes that shape out of any exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_UNKNOWN_PUBLIC = "Something went wrong here; my operator can find it in the log."


class GatewayError(Exception):
    """The gateway cannot continue."""

    temporary: ClassVar[bool] = False
    exit_code: int = 70
    """What the process ends with; the codes are those of sysexits.h."""

    def __init__(self, detail: str = "", /, *, public: str | None = None, **fields: Any) -> None:
        self.public = public or (type(self).__doc__ or "").strip().splitlines()[0]
        self.fields = fields
        super().__init__(detail or self.public)


class ConfigInvalid(GatewayError):
    """The configuration cannot work; the operator must correct it."""

    exit_code = 78  # EX_CONFIG: a service manager is told not to restart on it


class AlreadyRunning(GatewayError):
    """Another squidbot works on this home folder."""

    exit_code = 78


class ChatOpen(AlreadyRunning):
    """A `squidbot chat` without a daemon works on this home folder."""

    exit_code = 75


class StateUnusable(GatewayError):
    """The home folder cannot be used."""

    exit_code = 74  # EX_IOERR


class ListenFailed(GatewayError):
    """The address for health and metrics cannot be used."""

    exit_code = 74


class NotFound(GatewayError):
    """Nothing has that name."""

    exit_code = 1


class NeedsDaemon(GatewayError):
    """This works only while the daemon runs; start it with `squidbot run`."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class Description:
    """The parts of an exception that a log or a person needs."""

    temporary: bool
    public: str
    fields: Mapping[str, Any]


def describe(error: BaseException, *, temporary: bool = False) -> Description:
    """
    Describe any exception, also one that is not ours.

    Args:
        error: The exception. Of a group, the first error that has our shape speaks for all.
        temporary: What to believe of an exception that does not say it itself. Sending believes yes (and
            counts), thinking believes no.
    """
    speaker = next((leaf for leaf in leaves(error) if _is_described(leaf)), None) or next(leaves(error))
    fields: dict[str, Any] = {"error": type(speaker).__name__, "detail": str(speaker)[:500]}
    if speaker.__cause__ is not None:
        fields["cause"] = type(speaker.__cause__).__name__
    if not _is_described(speaker):
        return Description(temporary=temporary, public=_UNKNOWN_PUBLIC, fields=fields)
    shaped: Any = speaker
    # LostTurn and its like carry no fields of their own.
    return Description(
        temporary=bool(shaped.temporary),
        public=str(shaped.public),
        fields={**getattr(shaped, "fields", {}), **fields},
    )


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a group, however deep, in order; any other exception is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _is_described(error: BaseException) -> bool:
    return isinstance(getattr(error, "temporary", None), bool) and isinstance(
        getattr(error, "public", None), str
    )
