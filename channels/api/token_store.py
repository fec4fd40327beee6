"""The bearer tokens of the endpoint: each speaks for one person, and only its hash is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from agent_core.state_folder import StateFolder

_DOCUMENT = "tokens.json"
_PREFIX = "sqb-"


class TokenProblem(Exception):
    """A token cannot be made or revoked; the text says why."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token as it is stored; ``digest`` is the SHA-256 of its text."""

    name: str
    person: str
    digest: str
    at: datetime


_TOKENS = TypeAdapter(list[ApiToken])


class ApiTokens:
    """The stored tokens. Every method waits for the disk or the database, and raises OSError."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state

    def rows(self) -> list[ApiToken]:
        """Return all tokens, oldest first."""
        return _parsed(self._state.read(_DOCUMENT))

    def add(self, name: str, person: str, at: datetime) -> str:
        """Make a token and return its text, which nobody can find out later. Raises TokenProblem."""
        text = _PREFIX + secrets.token_urlsafe(32)
        found = self.rows()
        if any(each.name == name for each in found):
            raise TokenProblem(f"there is a token {name!r} already; revoke it, or choose another name")
        self._write([*found, ApiToken(name, person, _digest(text), at)])
        return text

    def revoke(self, name: str) -> None:
        """Make a token worthless at once. Raises TokenProblem."""
        found = self.rows()
        rest = [each for each in found if each.name != name]
        if len(rest) == len(found):
            raise TokenProblem(f"there is no token {name!r}; `squidbot tokens list` lists them")
        self._write(rest)

    def reassign(self, people: Collection[str], new: str) -> None:
        """Let the tokens of these people speak for ``new``; empty: for nobody, so they are gone."""
        found = [replace(each, person=new) if each.person in people else each for each in self.rows()]
        self._write([each for each in found if each.person])

    def find(self, text: str) -> ApiToken | None:
        """Return the token with this text; None: there is none."""
        digest = _digest(text)
        # Of a hash, the time of a comparison tells nothing that leads to a token.
        return next((each for each in self.rows() if each.digest == digest), None)

    def _write(self, tokens: list[ApiToken]) -> None:
        self._state.write(_DOCUMENT, _TOKENS.dump_json(tokens))


def _parsed(content: bytes | None) -> list[ApiToken]:
    try:
        return [] if content is None else _TOKENS.validate_json(content)
    except ValidationError as error:
        raise OSError(None, f"{_DOCUMENT} is damaged, so no token counts; make new ones") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
