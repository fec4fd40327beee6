"""
The options and environment variables of `squidbot init`, and the rules for a single answer. Pure. Every
option ``--some-thing`` can be given as ``SQUIDBOT_INIT_SOME_THING`` as well; the option counts first. A
password is never an option: other users of a machine can read the arguments of a process. It comes from a
file (``--matrix-password-file``), from the environment (``SQUIDBOT_INIT_MATRIX_PASSWORD``), or is asked for.
"""

from __future__ import annotations

import ssl
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_type_hints

from agent_core.text import time_zone
from channels.setup import SetupRefused

ENVIRONMENT = "SQUIDBOT_INIT_"
_LONGEST = 500
_MAX_SECRET = 10_000
_YES, _NO = frozenset({"1", "yes", "true", "on"}), frozenset({"0", "no", "false", "off", ""})


@dataclass(frozen=True, slots=True)
class Given:
    """The values of options and environment; None: not given. Secrets do not appear in its repr."""

    yes: bool = False
    matrix: bool | None = None
    matrix_homeserver: str | None = None
    matrix_user: str | None = None
    matrix_password: str | None = field(default=None, repr=False)
    email: bool | None = None
    email_address: str | None = None
    email_user: str | None = None
    email_password: str | None = field(default=None, repr=False)
    imap: str | None = None
    smtp: str | None = None
    authserv_id: str | None = None
    tls_ca_file: str | None = None
    owner: tuple[str, ...] = ()
    timezone: str | None = None
    model: str | None = None
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    probe: bool = True
    hello: bool = True
    install: str | None = None

    def as_mapping(self) -> dict[str, object]:
        """The given values by their names."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in found.items() if value is not None}


def clean(text: str, what: str) -> str:
    """Return an answer fit for the configuration. Raises ValueError if too long or with controls."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise ValueError(f"{what} has {len(text)} characters; at most {_LONGEST} are accepted")
    if _has_controls(text):
        raise ValueError(f"{what} has a line break or another control character in it")
    return text


def clean_secret(text: str, what: str) -> str:
    """Strip a secret's final line break, not its spaces. Raises ValueError if it cannot be one."""
    text = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError(f"{what} is empty")
    if len(text) > _MAX_SECRET:
        raise ValueError(f"{what} has {len(text)} characters; is that the right file?")
    if _has_controls(text):
        raise ValueError(f"{what} has a line break or another control character in it")
    return text


def _has_controls(text: str) -> bool:
    return any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char == "\ufeff" for char in text)


def parse_options(options: Mapping[str, object], environ: Mapping[str, str]) -> Given:
    """
    Combine options and environment.

    Args:
        options: By the names of `Given`; with ``matrix_password_file``, ``email_password_file`` and
            ``api_key_file`` for the secrets. None is "not given".
        environ: The environment.

    Raises:
        SetupRefused: Something of it cannot be used; the text lists all of it.
    """
    problems: list[str] = []
    found: dict[str, object] = {}
    for name in Given.__dataclass_fields__:
        try:
            value = _value(name, options, environ)
        except ValueError as error:
            problems.append(str(error))
        else:
            if value is not None:
                found[name] = value
    if problems:
        raise SetupRefused("\n".join(problems))
    return Given(**found)  # type: ignore[arg-type]  # each by the rule for its name


def _value(name: str, options: Mapping[str, object], environ: Mapping[str, str]) -> object:
    option = _option(name)
    if name.endswith(("_password", "api_key")):
        return _secret(name, options.get(f"{name}_file"), environ)
    said = options.get(name)
    variable = ENVIRONMENT + name.upper()
    if get_type_hints(Given)[name] in (bool, bool | None):
        return said if isinstance(said, bool) else _truth(variable, environ)
    if name == "owner":
        many: Sequence[object] = said if isinstance(said, Sequence) and not isinstance(said, str) else ()
        texts = [str(one) for one in many] or environ.get(variable, "").replace(",", " ").split()
        return tuple(clean(text, option) for text in texts) or None
    text = environ.get(variable) if said is None else str(said)
    if text is None or not text.strip():
        return None
    text = clean(text, option)
    if name == "install" and text not in ("user", "system"):
        raise ValueError(f"--install is user or system, not {text!r}")
    if name == "timezone":
        return time_zone(text).key
    if name == "tls_ca_file":
        _prove_certificates(text, option)
    return text


def _prove_certificates(file: str, what: str) -> None:
    """Also where no server is asked yet: a later one would be refused for it."""
    try:
        ssl.create_default_context(cafile=Path(file).expanduser())
    except (OSError, RuntimeError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"{what}: {file} is not a readable file of PEM certificates: {why}") from error


def _secret(name: str, file: object, environ: Mapping[str, str]) -> str | None:
    variable = ENVIRONMENT + name.upper()
    chosen = environ.get(f"{variable}_FILE") if file is None else str(file)
    what = f"{_option(name)}-file"
    if chosen:
        try:
            text = Path(chosen).expanduser().read_bytes()[: 2 * _MAX_SECRET].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{what}: {chosen} is not UTF-8 text") from error
        except (OSError, RuntimeError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise ValueError(f"{what}: {chosen} cannot be read: {why}") from error
        return clean_secret(text, what)
    return clean_secret(environ[variable], variable) if environ.get(variable) else None


def _truth(variable: str, environ: Mapping[str, str]) -> bool | None:
    if variable not in environ:
        return None
    word = environ[variable].strip().lower()
    if word not in _YES | _NO:
        raise ValueError(f"{variable} is yes or no, not {word[:40]!r}")
    return word in _YES


def _option(name: str) -> str:
    return {"email_address": "--email"}.get(name, f"--{name.replace('_', '-')}")
