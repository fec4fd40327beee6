"""The command ``squidbot init``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from gateway.cli.command_context import HERE, Where
from gateway.cli.output import program_command


@Parameter(name="*")
@dataclass(frozen=True)
class InitOptions:
    """The answers that are not asked for."""

    yes: bool = False
    """Ask nothing; use what is given, configured or discovered."""
    matrix_user: str | None = None
    """The bot's Matrix id, such as @squid:example.org."""
    matrix_homeserver: str | None = None
    """Its homeserver, a name or an address (default: discovered)."""
    matrix_password_file: Path | None = None
    """A file with the password of that account."""
    no_matrix: bool = False
    """Omit or disable Matrix."""
    email_address: Annotated[str | None, Parameter(name="--email")] = None
    """The bot's mail address."""
    email_user: str | None = None
    """The login name (default: the address)."""
    email_password_file: Path | None = None
    """A file with the password of that mailbox."""
    imap: str | None = None
    """The IMAP server: host, host:port, or tls://host:port (default: discovered)."""
    smtp: str | None = None
    """The submission server, likewise, or starttls://host:port (default: discovered)."""
    authserv_id: str | None = None
    """The server whose Authentication-Results are trusted (default: discovered)."""
    no_email: bool = False
    """Omit or disable mail."""
    tls_ca_file: Path | None = None
    """Certificates of your own CA."""
    owner: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None
    """Your own addresses, on Matrix and by mail."""
    timezone: str | None = None
    """Your time zone, such as Europe/Berlin (default: this machine's)."""
    model: str | None = None
    """The model as provider/name; ollama/name for the local Ollama; demo for the built-in one."""
    api_base: str | None = None
    """The address of your own model server."""
    api_key_file: Path | None = None
    """A file with the provider's API key."""
    no_probe: bool = False
    """Do not test the model with a question."""
    no_hello: bool = False
    """Do not send a first message."""
    install: Literal["user", "system"] | None = None
    """Install and start the systemd unit: user, or system (as root)."""


_NOTHING = InitOptions()


def init(*, options: InitOptions = _NOTHING, where: Where = HERE) -> int:
    """
    Set up squidbot: ask for the accounts, log in, write the configuration, and send you a first message.

    What an option says is not asked. Every option can be given as SQUIDBOT_INIT_… in the environment, too,
    and secrets as SQUIDBOT_INIT_MATRIX_PASSWORD, SQUIDBOT_INIT_EMAIL_PASSWORD and SQUIDBOT_INIT_API_KEY. A
    configuration that exists is not changed: it proposes what is configured, and prints the lines to add.
    """
    from gateway.cli.setup.dialogue import Terminal, UnattendedDialogue
    from gateway.cli.setup.options import parse_options
    from gateway.cli.setup.systemd import SystemPlaces
    from gateway.cli.setup.wizard import Init, ProgramCommand
    from gateway.observability.logs import configure_logs
    from gateway.system.home import Home, find_home

    configure_logs("error", quiet=True)  # all of it is said in words
    ca_file = None if options.tls_ca_file is None else options.tls_ca_file.expanduser().absolute()
    answers = asdict(options)
    named_off = {
        name.removeprefix("no_"): False for name in answers if name.startswith("no_") and answers[name]
    }
    given = parse_options(
        answers | {"yes": options.yes or None, "tls_ca_file": ca_file} | named_off, os.environ
    )
    system = SystemPlaces()
    of_system = given.install == "system" and where.home is None and where.config is None
    home = Home(system.home if of_system else find_home(where.home))
    config = system.config if of_system else (where.config_path or home.config_file).expanduser().absolute()
    named = ["--home", str(home.root)] if of_system or where.home or os.environ.get("SQUIDBOT_HOME") else []
    named += ["--config", str(config)] if of_system or where.config_path else []
    dialogue = UnattendedDialogue() if given.yes else Terminal()
    called = ProgramCommand(program_command(sys.argv[0], os.environ), tuple(named), tuple(sys.argv[1:]))
    try:
        return Init(given, home, config, dialogue, os.environ, called, system).run()
    finally:
        sys.stdout.flush()
