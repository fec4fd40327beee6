"""The command ``squidbot init``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from gateway.cli.command_context import HERE, Where
from gateway.cli.output import called_as


def init(
    *,
    yes: bool = False,
    matrix_user: str | None = None,
    matrix_homeserver: str | None = None,
    matrix_password_file: Path | None = None,
    no_matrix: bool = False,
    email_address: Annotated[str | None, Parameter(name="--email")] = None,
    email_user: str | None = None,
    email_password_file: Path | None = None,
    imap: str | None = None,
    smtp: str | None = None,
    authserv_id: str | None = None,
    no_email: bool = False,
    tls_ca_file: Path | None = None,
    owner: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    timezone: str | None = None,
    model: str | None = None,
    api_base: str | None = None,
    api_key_file: Path | None = None,
    voice: Literal["no", "listen", "answer"] | None = None,
    no_probe: bool = False,
    no_hello: bool = False,
    install: Literal["user", "system"] | None = None,
    where: Where = HERE,
) -> int:
    """
    Set up squidbot: ask for the accounts, log in, write the configuration, and send you a first message.

    What an option says is not asked. Every option can be given as SQUIDBOT_INIT_… in the environment, too,
    and secrets as SQUIDBOT_INIT_MATRIX_PASSWORD, SQUIDBOT_INIT_EMAIL_PASSWORD and SQUIDBOT_INIT_API_KEY. A
    configuration that exists is not changed: it proposes what is configured, and prints the lines to add.

    Args:
        yes: Ask nothing; use what is given, configured or discovered.
        matrix_user: The bot's Matrix id, such as @squid:example.org.
        matrix_homeserver: Its homeserver, a name or an address (default: discovered).
        matrix_password_file: A file with the password of that account.
        no_matrix: Omit or disable Matrix.
        email_address: The bot's mail address.
        email_user: The login name (default: the address).
        email_password_file: A file with the password of that mailbox.
        imap: The IMAP server: host, host:port, or tls://host:port (default: discovered).
        smtp: The submission server, likewise, or starttls://host:port (default: discovered).
        authserv_id: The server whose Authentication-Results are trusted (default: discovered).
        no_email: Omit or disable mail.
        tls_ca_file: Certificates of your own CA.
        owner: Your own addresses, on Matrix and by mail.
        timezone: Your time zone, such as Europe/Berlin (default: this machine's).
        model: The model as provider/name; ollama/name for the local Ollama; demo for the built-in one.
        api_base: The address of your own model server.
        api_key_file: A file with the provider's API key.
        voice: Voice messages: listen to them, or listen and answer by voice, too (if the provider can).
        no_probe: Do not test the model with a question.
        no_hello: Do not send a first message.
        install: Install and start the systemd unit: user, or system (as root).
    """
    from gateway.cli.setup.dialogue import Silent, Terminal
    from gateway.cli.setup.options import parse_options
    from gateway.cli.setup.systemd import SystemPlaces
    from gateway.cli.setup.wizard import Init
    from gateway.observability.logs import configure_logs
    from gateway.system.home import Home, find_home

    configure_logs("error", quiet=True)  # all of it is said in words
    ca_file = None if tls_ca_file is None else tls_ca_file.expanduser().absolute()
    given = parse_options(
        {
            "yes": yes or None,
            "matrix": False if no_matrix else None,
            "matrix_user": matrix_user,
            "matrix_homeserver": matrix_homeserver,
            "matrix_password_file": matrix_password_file,
            "email": False if no_email else None,
            "email_address": email_address,
            "email_user": email_user,
            "email_password_file": email_password_file,
            "imap": imap,
            "smtp": smtp,
            "authserv_id": authserv_id,
            "tls_ca_file": ca_file,
            "owner": owner,
            "timezone": timezone,
            "model": model,
            "api_base": api_base,
            "api_key_file": api_key_file,
            "voice": voice,
            "probe": False if no_probe else None,
            "hello": False if no_hello else None,
            "install": install,
        },
        os.environ,
    )
    system = SystemPlaces()
    of_system = given.install == "system" and where.home is None and where.config is None
    home = Home(system.home if of_system else find_home(where.home))
    config = system.config if of_system else (where.config_path or home.config_file).expanduser().absolute()
    named = ["--home", str(home.root)] if of_system or where.home or os.environ.get("SQUIDBOT_HOME") else []
    named += ["--config", str(config)] if of_system or where.config_path else []
    dialogue = Silent() if given.yes else Terminal()
    program = called_as(sys.argv[0], os.environ)
    try:
        return Init(
            given, home, config, dialogue, os.environ, tuple(named), system, program, tuple(sys.argv[1:])
        ).run()
    finally:
        sys.stdout.flush()
