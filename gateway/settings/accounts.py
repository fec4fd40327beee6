"""
Several accounts of one kind: ``channels.matrix`` and ``channels.email`` as a mapping or a list of mappings.

A mapping is one account that bears the name of its kind. In a list each has a ``name`` of its own; the first
may go without. Everything else knows a channel by that name: sessions, positions, folders, ``allow_from``,
``status``. Who the owner is goes by the kind as far as the accounts of a kind verify people alike; those that
believe more than the first one are apart (`ChannelSettings.apart`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Tag, model_validator

from channels.email.config import EmailConfig
from channels.matrix.config import MatrixConfig
from gateway.routing.access import normalise
from gateway.settings.source import KeyPath, Problem, show_path

KINDS = ("matrix", "email")
_ADDRESS = {"matrix": "user_id", "email": "address"}
RESERVED = frozenset({"terminal", "heartbeat", "schedule", "loopback", "gateway", "owner"})

AccountConfig = MatrixConfig | EmailConfig
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def _is_name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is not a valid name: write a lower-case letter, then lower-case letters, "
            "digits, - and _"
        )
    return value


_Name = Annotated[str, AfterValidator(_is_name)]


class AccountProblems(ValueError):
    """What is wrong between accounts, each with its place."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{show_path(each.path)} {each.message}" for each in problems))


class MatrixAccount(MatrixConfig):
    """One of several accounts on Matrix."""

    name: _Name | None = None
    """What it is called everywhere; the first of several may go without."""


class EmailAccount(EmailConfig):
    """One of several mailboxes."""

    name: _Name | None = None
    """What it is called everywhere; the first of several may go without."""


def _one_or_many(value: Any) -> str:
    return "many" if isinstance(value, list | tuple) else "one"


_GivenMatrix = Annotated[
    Annotated[MatrixConfig, Tag("one")] | Annotated[tuple[MatrixAccount, ...], Tag("many")],
    Discriminator(_one_or_many),
]
_GivenEmail = Annotated[
    Annotated[EmailConfig, Tag("one")] | Annotated[tuple[EmailAccount, ...], Tag("many")],
    Discriminator(_one_or_many),
]


class ChannelSettings(BaseModel):
    """Where people talk; a channel that is not mentioned does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    matrix: _GivenMatrix | None = None
    """One account, or a list of several, each with a ``name``."""
    email: _GivenEmail | None = None
    """One mailbox, or a list of several, each with a ``name``."""

    def enabled(self) -> dict[str, AccountConfig]:
        """The accounts that are switched on, by name."""
        return {name: config for _, _, name, config in self._all() if config.enabled}

    def kinds(self) -> dict[str, str]:
        """``matrix`` or ``email``, by name of the account."""
        return {name: kind for _, kind, name, _ in self._all()}

    def apart(self) -> frozenset[str]:
        """
        The accounts that take somebody's word for who people are whom the first account of the kind does not
        ask: another homeserver, or a mailbox that verifies less. There an address is not the same person.
        """
        first: dict[str, AccountConfig] = {}
        return frozenset(
            name
            for _, kind, name, config in self._all()
            if not _believes_no_more(config, first.setdefault(kind, config))
        )

    def places(self) -> dict[str, str]:
        """Where each account stands in the file, by name."""
        return {name: show_path(path) for path, _, name, _ in self._all()}

    def _all(self) -> Iterator[tuple[KeyPath, str, str, AccountConfig]]:
        for kind in KINDS:
            given = getattr(self, kind)
            if isinstance(given, tuple):
                for number, config in enumerate(given):
                    name = config.name or (kind if number == 0 else "")
                    yield ("channels", kind, number), kind, name, config
            elif given is not None:
                yield ("channels", kind), kind, kind, given

    @model_validator(mode="after")
    def _each_is_one(self) -> Self:
        problems: list[Problem] = []
        names: dict[str, KeyPath] = {}
        addresses: dict[tuple[str, str], KeyPath] = {}
        for path, kind, name, config in self._all():
            here = (*path, "name")
            if not name:
                problems.append(Problem(here, "is missing; only the first account may leave it out"))
            elif name in RESERVED or name in set(KINDS) - {kind}:
                problems.append(Problem(here, f'"{name}" is a reserved name; choose another one'))
            elif name in names:
                problems.append(Problem(here, f'"{name}" is already the name of {show_path(names[name])}'))
            names.setdefault(name, path)
            address = config.user_id if isinstance(config, MatrixConfig) else config.address
            same = addresses.setdefault((kind, normalise(address)), path)
            if same != path:
                problems.append(
                    Problem((*path, _ADDRESS[kind]), f"{address} is already the account of {show_path(same)}")
                )
        if problems:
            raise AccountProblems(problems)
        return self


def _believes_no_more(config: AccountConfig, first: AccountConfig) -> bool:
    if isinstance(config, MatrixConfig) or isinstance(first, MatrixConfig):
        return _homeserver(config) == _homeserver(first)
    if config.sender_verification == "off":
        return first.sender_verification == "off"
    return _vouching(config) <= _vouching(first)


def _homeserver(config: AccountConfig) -> str:
    return config.user_id.partition(":")[2] if isinstance(config, MatrixConfig) else ""


def _vouching(config: EmailConfig) -> set[tuple[str, str]]:
    """Whose word on senders counts: a name in Authentication-Results is worth what its mail server is."""
    names = {*config.trusted_authserv_ids, *([""] if config.trust_headerless_auth_results else [])}
    return {(config.imap.host.lower(), name) for name in names}
