"""
Several accounts of one kind: each kind under ``channels:`` is a mapping or a list of mappings.

A mapping is one account that bears the name of its kind. In a list each has a ``name`` of its own; the first
may go without. Everything else knows a channel by that name: sessions, positions, folders, ``allow_from``,
``status``. Who the owner is goes by the kind as far as the accounts of a kind verify people alike; those that
believe more than the first one are apart (`ChannelSettings.apart`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    create_model,
    model_validator,
)

from agent_core.settings_section import SettingsSection
from channels.plugin import AccountConfig, ChannelPlugin
from gateway.plugins import channel_kinds
from gateway.routing.access import Access, normalise
from gateway.settings.people_settings import household_of
from gateway.settings.source import KeyPath, Problem, show_path

if TYPE_CHECKING:
    from gateway.settings import Settings

RESERVED = frozenset({"terminal", "heartbeat", "schedule", "loopback", "gateway", "owner"})

_NAME_TEXT = "What it is called everywhere; the first of several may go without."
_KIND_TEXT = "One account, or a list of several, each with a ``name``."
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
    """The contradictions between accounts, each with its place."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{show_path(each.path)} {each.message}" for each in problems))


def _one_or_many(value: Any) -> str:
    return "many" if isinstance(value, list | tuple) else "one"


class Accounts(SettingsSection):
    """The accounts of every kind of channel; `accounts_model` adds a field for each kind."""

    def enabled(self) -> dict[str, AccountConfig]:
        """The accounts that are switched on, by name."""
        return {name: config for _, _, name, config in self._all() if config.enabled}

    def kinds(self) -> dict[str, str]:
        """The kind of channel, by name of the account."""
        return {name: kind for _, kind, name, _ in self._all()}

    def separate_accounts(self) -> frozenset[str]:
        """
        The accounts that take somebody's word for who people are whom the first account of the kind does not
        ask: another homeserver, or a mailbox that verifies less. There an address is not the same person.
        """
        first: dict[str, AccountConfig] = {}
        return frozenset(
            name
            for _, kind, name, config in self._all()
            if not channel_kinds()[kind].trusts_no_more(config, first.setdefault(kind, config))
        )

    def places(self) -> dict[str, str]:
        """Return the place of each account in the file, by name."""
        return {name: show_path(path) for path, _, name, _ in self._all()}

    def _all(self) -> Iterator[tuple[KeyPath, str, str, AccountConfig]]:
        for kind in channel_kinds():
            given = getattr(self, kind, None)
            if isinstance(given, tuple):
                for number, config in enumerate(given):
                    name = getattr(config, "name", None) or (kind if number == 0 else "")
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
            elif name in RESERVED or name in channel_kinds().keys() - {kind}:
                problems.append(Problem(here, f'"{name}" is a reserved name; choose another one'))
            elif name in names:
                problems.append(Problem(here, f'"{name}" is already the name of {show_path(names[name])}'))
            names.setdefault(name, path)
            plugin = channel_kinds()[kind]
            address = plugin.own_address(config)
            same = addresses.setdefault((kind, normalise(address)), path)
            if same != path:
                problems.append(
                    Problem(
                        (*path, plugin.address_key), f"{address} is already the account of {show_path(same)}"
                    )
                )
            problems += [
                Problem((*path, "allow_from", number), f"{entry!r} {problem}")
                for number, entry in enumerate(config.allow_from)
                if (problem := plugin.addresses.entry_problem(entry))
            ]
        if problems:
            raise AccountProblems(problems)
        return self


def accounts_model(base: type[Accounts], plugins: Iterable[ChannelPlugin[Any]]) -> type[Accounts]:
    """The model of these settings with a field for each kind of channel."""
    fields: dict[str, Any] = {}
    for plugin in plugins:
        config = plugin.config
        one = create_model(
            f"{config.__name__.removesuffix('Config')}Account",
            __base__=config,
            __module__=__name__,
            __doc__="One of several accounts.",
            name=(_Name | None, Field(None, description=_NAME_TEXT)),
        )
        given = Annotated[
            Annotated[config, Tag("one")] | Annotated[tuple[one, ...], Tag("many")],  # type: ignore[valid-type]
            Discriminator(_one_or_many),
        ]
        fields[plugin.kind] = (given | None, Field(None, description=_KIND_TEXT))
    doc = base.__doc__
    return create_model("ChannelSettings", __base__=base, __module__=__name__, __doc__=doc, **fields)


class ChannelSettings(accounts_model(Accounts, channel_kinds().values()), Accounts):  # type: ignore[misc]
    """The channels on which people talk to the bot; a channel that is not mentioned does not exist."""


def own_addresses(settings: Settings) -> dict[str, str]:
    """The bot's own address on each enabled channel."""
    kinds = settings.channels.kinds()
    return {
        name: channel_kinds()[kinds[name]].own_address(config)
        for name, config in settings.channels.enabled().items()
    }


def access_of(settings: Settings, more: Mapping[str, Sequence[str]] | None = None) -> Access:
    """The access rules of these settings, and of ``more`` people."""
    return Access(
        settings.owner.aliases,
        {**settings.allow_from(), **(more or {})},
        kinds=settings.channels.kinds(),
        apart=settings.channels.separate_accounts(),
        own=own_addresses(settings).values(),
        household=household_of(settings.people, settings.language),
    )
