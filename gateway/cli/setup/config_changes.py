"""
Turns the answers of `squidbot init` into settings, comments and secret files. Pure.

Only what was asked is named here; everything else in an existing file is left to its writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.setup.mail_providers import Place
from gateway.cli.setup.model_probe import ModelOffer
from gateway.cli.setup.yaml_edit import value_at
from gateway.routing.access import kind_of, normalise
from gateway.settings.source import KeyPath

HEAD = """\
# squidbot's settings, by `squidbot init`. Change what you like; `squidbot check` tests it.
# ${secret:NAME} is the file secrets/NAME beside this one, ${NAME} an environment variable.
"""

_SECRET = "${secret:"  # noqa: S105 - no password
NOTES: dict[KeyPath, str] = {
    ("owner",): "Who you are. squidbot reads and writes your memory only where nobody else can read along.",
    ("owner", "aliases"): "your addresses on all channels",
    ("llm",): "The models. A pool is a list: if a model fails, squidbot asks the next one.",
    ("llm", "default_pool"): "the pool that answers",
    ("timezone",): "of all times that are said to you and by you",
    ("llm", "providers"): "who runs the models, and the key for it; api_base for a server of your own",
    ("llm", "models"): "the models, under names that you choose",
    ("voice",): "Voice messages. The provider gets all of them; see docs/voice.md.",
    ("voice", "transcribe"): "turns them into text",
    ("voice", "speak"): "speaks answers; same: only answers to voice messages",
    ("channels",): "Where people talk to squidbot. allow_from names who else may; you always may.",
    ("matrix", "enabled"): "false switches it off",
    ("matrix", "homeserver"): "the address of the client API",
    ("matrix", "user_id"): "the bot's own account",
    ("matrix", "allow_from"): 'such as "@bob:example.org"; nobody else is let in',
    ("email", "enabled"): "false switches it off",
    ("email", "address"): "the bot's own mailbox",
    ("email", "username"): "the user name for the login",
    ("email", "imap"): "the server for reading mail",
    ("email", "smtp"): "the server for sending mail",
    ("email", "allow_from"): 'such as "bob@example.org"; nobody else is answered',
    ("email", "trusted_authserv_ids"): "the server whose Authentication-Results squidbot trusts",
    ("email", "trust_headerless_auth_results"): "the provider's Authentication-Results has no server name",
    ("email", "dkim"): (
        "squidbot verifies senders by their DKIM signatures, because the provider does not report on senders"
    ),
    (
        "email",
        "sent_copy",
    ): "who puts a copy of each answer into Sent: self, server, append, none",
    ("email", "tls_ca_file"): "your own certificate authority, trusted besides those of the system",
    ("matrix", "tls_ca_file"): "your own certificate authority, trusted besides those of the system",
}


@dataclass(frozen=True, slots=True)
class MatrixAnswers:
    """An account on Matrix; ``password`` None: the one that is configured stays."""

    homeserver: str
    user_id: str
    password: str | None = field(repr=False)
    tls_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class EmailAnswers:
    """
    A mailbox; ``password`` None: the one that is configured stays. ``authserv_ids`` None: so does all that
    senders are proven by.
    """

    address: str
    username: str
    password: str | None = field(repr=False)
    imap: Place
    smtp: Place
    sent_copy: str
    authserv_ids: tuple[str, ...] | None = ()
    headerless: bool = False
    tls_ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class VoiceAnswers:
    """Which models of a provider listen and, unless that is empty, speak."""

    provider: str
    listens: str
    speaks: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers. A channel that is None is left as it is, or switched off if it is in ``off``."""

    owner: tuple[str, ...]
    model: ModelOffer | None = None
    voice: VoiceAnswers | None = None
    matrix: MatrixAnswers | None = None
    email: EmailAnswers | None = None
    off: frozenset[str] = frozenset()
    timezone: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """
    The values of keys, in the order of the file.

    ``wanted`` is as it is written, ``meant`` as it must read once references are looked up. ``secrets`` are
    the contents of files by their names.
    """

    wanted: dict[KeyPath, Any]
    meant: dict[KeyPath, Any] = field(repr=False)
    secrets: dict[str, str] = field(repr=False)
    notes: dict[KeyPath, str] = field(default_factory=dict)


def draft(answers: Answers, before: Mapping[str, Any], now: Mapping[str, Any]) -> Draft:
    """
    The settings for these answers, without what already reads as it should, by whatever reference.

    Args:
        answers: What was asked.
        before: What the file says, with its references as they are written.
        now: What it says once they are looked up.
    """
    whole = _draft(answers, before)
    made = Draft({}, {}, {}, whole.notes)
    for path, value in whole.wanted.items():
        meant = _meant(value, whole.secrets)
        if path == ("owner", "aliases"):
            if value != value_at(before, path):
                made.wanted[path] = value
        elif meant != value_at(now, path):
            made.wanted[path] = value if value != meant else _literal_within(value)
            made.meant[path] = meant
            if value != meant:
                name = str(value)[len(_SECRET) : -1]
                made.secrets[name] = whole.secrets[name]
    return made


def literal(text: str) -> str:
    """A text as it is written, so that nothing in it is looked up."""
    return text.replace("${", "$${")


def _meant(value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, str) and value.startswith(_SECRET) and value[len(_SECRET) : -1] in secrets:
        return secrets[value[len(_SECRET) : -1]]
    return value


def _literal_within(value: Any) -> Any:
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, list):
        return [_literal_within(one) for one in value]
    if isinstance(value, dict):
        return {key: _literal_within(one) for key, one in value.items()}
    return value


def _draft(answers: Answers, before: Mapping[str, Any]) -> Draft:
    made = Draft({}, {}, {})
    if aliases := _aliases(answers, before):
        made.wanted["owner", "aliases"] = aliases
    if answers.timezone:
        made.wanted["timezone",] = answers.timezone
    if answers.model is not None:
        _model(made, answers.model, before)
    if answers.voice is not None:
        _voice(made, answers.voice)
    if answers.matrix is not None:
        _matrix(made, answers.matrix, before)
    if answers.email is not None:
        _email(made, answers.email, before)
    for kind in sorted(answers.off):
        if value_at(before, first_account(before, kind)) is not None:
            made.wanted[(*first_account(before, kind), "enabled")] = False
    for path, note in NOTES.items():
        where = path if path[0] not in ("matrix", "email") else (*first_account(before, path[0]), *path[1:])
        made.notes[where] = note
    return made


def first_account(before: Mapping[str, Any], kind: str) -> KeyPath:
    """Where the first account of a kind stands."""
    many = isinstance(value_at(before, ("channels", kind)), list)
    return ("channels", kind, 0) if many else ("channels", kind)


def _aliases(answers: Answers, before: Mapping[str, Any]) -> list[Any]:
    """
    The owner's addresses: those that are new come to the others. Where none of a channel is among the old
    ones, the first of these is replaced, because it was asked for.
    """
    listed = value_at(before, ("owner", "aliases"))
    aliases: list[Any] = list(listed) if isinstance(listed, list) else []
    texts = [str(old.get("address") if isinstance(old, dict) else old) for old in aliases]
    old = {normalise(text) for text in texts}
    given = [literal(one) for one in answers.owner]
    known = {kind_of(one) for one in given if normalise(one) in old}
    for one in given:
        kind = kind_of(one)
        if normalise(one) in old:
            continue
        place = next((number for number, text in enumerate(texts) if kind_of(text) == kind), None)
        if kind in known or place is None:
            aliases.append(one)
        else:
            aliases[place] = one
        known.add(kind)
    return aliases


def _model(made: Draft, offer: ModelOffer, before: Mapping[str, Any]) -> None:
    pool = value_at(before, ("llm", "default_pool")) or "main"
    made.wanted["llm", "default_pool"] = pool
    name = "assistant"
    if offer.provider:
        provider = ("llm", "providers", offer.provider)
        if offer.api_base:
            made.wanted[(*provider, "api_base")] = offer.api_base
        if offer.is_own_server:
            made.wanted[(*provider, "api_key")] = offer.api_key or "none"
        else:
            made.wanted[(*provider, "api_key")] = _in_file(made, offer.secret_name, offer.api_key)
        made.wanted["llm", "models", name, "provider"] = offer.provider
    made.wanted["llm", "models", name, "model"] = offer.model
    others = value_at(before, ("llm", "pools", pool))
    others = [one for one in others if one != name] if isinstance(others, list) else []
    made.wanted["llm", "pools", pool] = [name, *others]


def _voice(made: Draft, answers: VoiceAnswers) -> None:
    for part, model in (("transcribe", answers.listens), ("speak", answers.speaks)):
        if model:
            made.wanted["voice", part, "provider"] = answers.provider
            made.wanted["voice", part, "model"] = model


def _matrix(made: Draft, answers: MatrixAnswers, before: Mapping[str, Any]) -> None:
    here = first_account(before, "matrix")
    _switch_on(made, here, before)
    made.wanted[(*here, "homeserver")] = answers.homeserver
    made.wanted[(*here, "user_id")] = answers.user_id
    if answers.password is not None:
        made.wanted[(*here, "password")] = _in_file(made, "matrix-password", answers.password)
    if answers.tls_ca_file:
        made.wanted[(*here, "tls_ca_file")] = answers.tls_ca_file
    if value_at(before, (*here, "allow_from")) is None:
        made.wanted[(*here, "allow_from")] = []


def _email(made: Draft, answers: EmailAnswers, before: Mapping[str, Any]) -> None:
    here = first_account(before, "email")
    _switch_on(made, here, before)
    made.wanted[(*here, "address")] = answers.address
    made.wanted[(*here, "username")] = answers.username
    if answers.password is not None:
        made.wanted[(*here, "password")] = _in_file(made, "email-password", answers.password)
    for name, place in (("imap", answers.imap), ("smtp", answers.smtp)):
        settings = place.as_settings()
        if isinstance(value_at(before, (*here, name)), dict):
            made.wanted.update({(*here, name, key): value for key, value in settings.items()})
        else:
            made.wanted[(*here, name)] = settings
    if answers.tls_ca_file:
        made.wanted[(*here, "tls_ca_file")] = answers.tls_ca_file
    if answers.authserv_ids is None:
        pass
    elif answers.headerless:
        made.wanted[(*here, "trust_headerless_auth_results")] = True
    elif answers.authserv_ids:
        made.wanted[(*here, "trusted_authserv_ids")] = list(answers.authserv_ids)
    else:
        made.wanted[(*here, "dkim")] = "verify"
    if value_at(before, (*here, "sent_copy")) is None or answers.sent_copy != "self":
        made.wanted[(*here, "sent_copy")] = answers.sent_copy
    if value_at(before, (*here, "allow_from")) is None:
        made.wanted[(*here, "allow_from")] = []


def _switch_on(made: Draft, here: KeyPath, before: Mapping[str, Any]) -> None:
    if value_at(before, (*here, "enabled")) is False or value_at(before, here) is None:
        made.wanted[(*here, "enabled")] = True


def _in_file(made: Draft, name: str, secret: str) -> str:
    made.secrets[name] = secret
    return f"{_SECRET}{name}}}"
