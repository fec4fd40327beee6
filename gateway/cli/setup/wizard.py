"""
The steps of `squidbot init`: look, ask and log in, show, write, install, greet, say what comes next.

Until `put` nothing is written and a new login at the homeserver is taken back if it is not wanted any more;
after it nothing is a failure, only something that remains to be done.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from agent_core.files import make_folder, write_new
from agent_core.persona import FILE_NAME, STARTER
from channels.email.config import EmailConfig
from channels.matrix.config import MatrixConfig
from gateway.cli.setup.config_lines import Answers, Tree, lines_of
from gateway.cli.setup.config_write import Existing, plan, read_existing, write_setup
from gateway.cli.setup.dialogue import Cancelled, Dialogue, Terminal
from gateway.cli.setup.email_questions import EmailAsked, ask_email
from gateway.cli.setup.matrix_probe import Entrance, has_login, is_unknown_user
from gateway.cli.setup.matrix_questions import InitFailed, MatrixAsked, ask_matrix
from gateway.cli.setup.model_probe import key_variable
from gateway.cli.setup.options import Given, InitRefused
from gateway.cli.setup.owner_questions import ask_model, ask_owner, ask_timezone, ask_voice
from gateway.cli.setup.systemd import Installed, Kind, SystemPlaces, install
from gateway.errors import StateUnusable, describe
from gateway.settings import Settings
from gateway.system.home import Home
from gateway.system.lock import holder_of

_CHECKLIST = """\
<!--
What should your assistant look at from time to time? It reads this list at each check-in and writes to you
only if there is something to say. For example:
- [ ] Is there frost in the forecast for the next night?
-->
"""
_PORTS = range(8811, 8831)  # of the first twenty homes on one machine


_MATRIX_PASSWORD = "--matrix-password-file FILE (or SQUIDBOT_INIT_MATRIX_PASSWORD)"  # noqa: S105 - no password
_EMAIL_PASSWORD = "--email-password-file FILE (or SQUIDBOT_INIT_EMAIL_PASSWORD)"  # noqa: S105 - no password


def missing(given: Given, settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """List the missing options, a sentence each, when nobody can be asked. Pure."""
    found = []
    matrix = cast("MatrixConfig | None", _first_of(settings, "matrix"))
    email = cast("EmailConfig | None", _first_of(settings, "email"))
    wants_matrix = given.matrix is not False and bool(
        given.matrix or given.matrix_user or given.matrix_homeserver or given.matrix_password or matrix
    )
    wants_email = given.email is not False and bool(
        given.email or given.email_address or given.email_password or given.imap or given.smtp or email
    )
    if not wants_matrix and not wants_email and (given.matrix is None or given.email is None):
        found.append(
            "No channel is given: give --matrix-user or --email (or --no-matrix and --no-email, "
            "for the terminal alone)."
        )
    if wants_matrix:
        known = matrix.user_id if matrix else None
        if not given.matrix_user and known is None:
            found.append("The bot's Matrix id is missing: give --matrix-user @name:server.")
        if given.matrix_password is None and (known is None or given.matrix_user not in (None, known)):
            found.append(f"The password of the Matrix account is missing: give {_MATRIX_PASSWORD}.")
    if wants_email:
        known = email.address if email else None
        if not given.email_address and known is None:
            found.append("The bot's mail address is missing: give --email name@domain.")
        if given.email_password is None and (known is None or given.email_address not in (None, known)):
            found.append(f"The password of the mailbox is missing: give {_EMAIL_PASSWORD}.")
    if (wants_matrix or wants_email) and not given.owner and not settings.owner.aliases:
        found.append("The owner is missing: give --owner @you:server or --owner you@domain (or both).")
    if _needs_key(given, settings, environ):
        found.append(_key_missing(given.model or ""))
    return found


def _key_missing(model: str) -> str:
    if "/" not in model:
        return f"The model {model} is named without its provider: write provider/name."
    return (
        f"The key for the model {model} is missing: give --api-key-file FILE (or "
        f"SQUIDBOT_INIT_API_KEY, or {key_variable(model)})."
    )


def _needs_key(given: Given, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return True if the requested model needs a key and has none."""
    model = given.model or ""
    if not model or model.startswith(("demo", "ollama/")) or given.api_base or given.api_key:
        return False
    return not environ.get(key_variable(model)) and not _uses(settings, model)


def _uses(settings: Settings, model: str) -> bool:
    return any(one.model == model for one in settings.llm.models.values())


def _first_of(settings: Settings, kind: str) -> MatrixConfig | EmailConfig | None:
    given = getattr(settings.channels, kind)
    return cast("MatrixConfig | EmailConfig | None", given[0] if isinstance(given, tuple) else given)


@dataclass(slots=True)
class Init:
    """
    One run of `squidbot init`.

    ``home_args`` name this home and configuration; ``places`` are a system service's paths; ``repeated`` is
    the command line shown to a person who cancels.
    """

    given: Given
    home: Home
    config: Path
    dialogue: Dialogue
    environ: Mapping[str, str]
    home_args: tuple[str, ...] = ()
    places: SystemPlaces = SystemPlaces()  # noqa: RUF009 - a frozen value
    program: str = "squidbot"
    repeated: tuple[str, ...] = ()
    _wrote: bool = field(default=False, init=False)
    _remains: Tree = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Run all steps. Raises `GatewayError`: nothing was written."""
        self._can_begin()
        existing = read_existing(self.config, self.environ)
        if not self.dialogue.interactive:
            if lacking := missing(self.given, existing.settings, self.environ):
                raise InitRefused("\n".join(lacking))
        else:
            self._welcome(existing)
        matrix = MatrixAsked()
        try:
            matrix = self._ask_matrix(existing)
            settings = self._ask_rest_and_write(existing, matrix)
        except BaseException as error:
            self._give_back(matrix)
            if isinstance(self.dialogue, Terminal) and (again := self.dialogue.repeat(self.repeated)):
                self.dialogue.say(f"\nTo go on with the same answers:\n  {self.program} {again}")
            if isinstance(error, KeyboardInterrupt):
                self.dialogue.say()
                raise Cancelled("interrupted; nothing was written") from None
            raise
        if matrix.entrance is not None:
            self._hand_over(matrix.entrance, _account_name(settings, "matrix"))
        return self._afterwards(settings)

    def _can_begin(self) -> None:
        if self.given.install == "system" and os.geteuid() != 0 and self.places == SystemPlaces():
            raise InitRefused("--install system needs root: run it with sudo, or use --install user")
        root = self.home.root
        if os.geteuid() == 0 and self.given.install != "system" and root.exists() and root.stat().st_uid:
            raise StateUnusable(
                f"{root} belongs to another user, and files made by root would lock that user out; run this "
                "as that user"
            )

    def _welcome(self, existing: Existing) -> None:
        say = self.dialogue.say
        say("This sets squidbot up. Nothing is written before the end; Ctrl-C leaves everything as it is.")
        if existing.is_there:
            say(f"The defaults are what {self.config} says; it is not changed, and you see what to add.")
        say()

    def _ask_matrix(self, existing: Existing) -> MatrixAsked:
        current = cast("MatrixConfig | None", _first_of(existing.settings, "matrix"))
        name = _account_name(existing.settings, "matrix")
        return ask_matrix(self.given, current, self.dialogue, state=lambda: self.home.state(name))

    def _ask_rest_and_write(self, existing: Existing, matrix: MatrixAsked) -> Settings:
        current = cast("EmailConfig | None", _first_of(existing.settings, "email"))
        email = ask_email(self.given, current, self.dialogue)
        owner = ask_owner(
            self.given,
            existing.settings,
            self.dialogue,
            channels=_channels(existing.settings, matrix, email),
            is_unknown=lambda person: _is_unknown(matrix, person),
        )
        zone = ask_timezone(self.given, existing.settings, self.dialogue)
        model = ask_model(self.given, existing.settings, self.dialogue, self.environ)
        voice = ask_voice(self.given, existing.settings, self.dialogue, chosen=model)
        off = frozenset(
            kind for kind, asked in (("matrix", matrix), ("email", email)) if asked.off
        )  # fmt: skip
        planned = plan(
            existing,
            Answers(
                owner,
                model,
                voice,
                matrix.answers,
                email.answers,
                off,
                zone,
                console="" if existing.is_there else free_address(),
            ),
            self.environ,
        )
        say = self.dialogue.say
        say()
        if not planned.lacks and existing.is_there:
            say(f"Nothing changes: {self.config} already says all of it.")
        for line in planned.told:
            say(f"- {line}")
        if planned.told and not self._is_wanted():
            raise InitFailed("nothing was written")
        self._wrote = bool(planned.told)
        settings, self._remains = write_setup(planned, self.environ)
        for warning in settings.warnings:
            say(f"Warning: {warning}")
        if self._remains:
            say(f"\nPut this into {self.config}; where a key is there already, change its value:")
            say()
            for line in lines_of(self._remains):
                say(line)
        return settings

    def _is_wanted(self) -> bool:
        """Ask before all is written; one Ctrl-C alone does not throw all answers away."""
        try:
            return self.dialogue.agree("Write this?", default=True)
        except KeyboardInterrupt:
            self.dialogue.say("\nNothing is written yet. Ctrl-C again leaves.")
            return self.dialogue.agree("Write this?", default=True)

    def _give_back(self, matrix: MatrixAsked) -> None:
        if matrix.entrance is not None:
            matrix.entrance.discard()

    def _hand_over(self, entrance: Entrance, name: str) -> None:
        """The daemon goes on with this login; without it it logs in by itself."""
        try:
            if self.given.install == "system" or "matrix" in self._remains.get("channels", {}):
                entrance.discard()
            else:
                self.home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                entrance.keep(self.home.state(name))
        except OSError as error:
            self.dialogue.say(f"The login cannot be saved ({error}); the daemon logs in when it starts.")

    def _afterwards(self, settings: Settings) -> int:
        """Do the last steps, whose failure does not undo the setup; return the exit code."""
        say = self.dialogue.say
        running = holder_of(self.home) is not None
        installed = Installed()
        remaining: list[str] = []
        kind = self.given.install or self._choose_unit()
        if kind != "system":
            begin_workspace(self.home.path(settings.agents.workspace))
        if kind is not None:
            installed = install(
                cast("Kind", kind),
                arguments=self.home_args,
                environ=self.environ,
                now=datetime.now(UTC),
                places=self.places,
            )
            for line in installed.done:
                say(f"systemd: {line}")
            remaining += installed.remaining
            if kind == "system" and _looks_into_homes(settings):
                remaining.append(
                    "tls_ca_file is in a home folder, which the service cannot read; move the file"
                )
        elif running and self._wrote:
            remaining.append("restart the running daemon, which still has the old settings")
        login_left = self._login_left(settings)
        remaining[:0] = login_left
        if self._remains:
            remaining.insert(0, f"write the lines above into {self.config}")
        elif not login_left and self.given.hello and settings.channels.enabled():
            remaining += self._greet(settings, later=kind == "system" and not installed.running)
        if remaining:
            say("\nWhat remains to be done:")
            for line in remaining:
                say(f"  {line}")
        self._next(installed, settings)
        return 0

    def _login_left(self, settings: Settings) -> list[str]:
        """Return what is to do if the account waits for a person to log it in."""
        account = cast("MatrixConfig | None", _first_of(settings, "matrix"))
        by_browser = account is not None and account.enabled and account.login == "browser"
        if not by_browser or has_login(self.home.state(_account_name(settings, "matrix"))):
            return []
        return [f"log the bot in: {self.program} matrix login"]

    def _choose_unit(self) -> str | None:
        """At a terminal the user unit is offered, where there is a systemd to run it."""
        if (
            not self.dialogue.interactive
            or not self.places.booted.is_dir()
            or holder_of(self.home) is not None
        ):
            return None
        try:
            wished = self.dialogue.agree("Install and start it as your own service (systemd)?", default=False)
        except (Cancelled, KeyboardInterrupt):
            return None
        return "user" if wished else None

    def _greet(self, settings: Settings, *, later: bool) -> list[str]:
        from gateway.cli.setup.first_message import greet, targets  # noqa: PLC0415 - the heaviest import there is

        again = f"{self.program} send TO TEXT"
        if later:
            return ["the first message was not sent, because the service does not run yet; then: " + again]
        if not targets(settings):
            return ["there is nobody to greet: owner.aliases has no address on an enabled channel"]
        try:
            greetings = greet(settings, self.home)
        except KeyboardInterrupt:
            return ["the first message was interrupted; the daemon sends what is in the outbox"]
        except Exception as error:  # noqa: BLE001 - whatever it is, what was written stays
            why = describe(error).fields["detail"] or type(error).__name__
            return [f"the first message was not sent: {why}"]
        remaining = []
        if not greetings:
            self.dialogue.say("You were greeted before; no further message was sent.")
        for one in greetings:
            name, _, address = one.to.partition(":")
            where = (
                f"accept the invitation in {address}'s client" if address.startswith("@") else "look in INBOX"
            )
            if one.sent:
                self.dialogue.say(f"A first message went to {address} ({name}): {where}.")
            else:
                remaining.append(f"the first message to {address} has not arrived: {one.told}")
        return remaining

    def _next(self, installed: Installed, settings: Settings) -> None:
        say = self.dialogue.say
        rest = "".join(f" {shlex.quote(word)}" for word in self.home_args)
        say("\nNext:")
        called = f"  {self.program}"
        say(f"{called} check{rest}      does everything work?")
        if installed.running:
            user = "" if self.given.install == "system" else " --user"
            say(f"  systemctl{user} status squidbot")
        else:
            talk = "write to it" if settings.channels.enabled() else f"{self.program} chat{rest}"
            say(f"{called} run{rest}        the daemon; then {talk}")
        say(f"{called} status{rest}     what it is doing")
        say("To give it a name and a manner, send it `!persona You are Ada, warm and brief.`")
        if settings.voice.transcribe is None and "matrix" in settings.channels.enabled():
            say("Voice messages stay files until you set voice.transcribe: see docs/voice.md")


def _looks_into_homes(settings: Settings) -> bool:
    files = [str(getattr(one, "tls_ca_file", None) or "") for one in settings.channels.enabled().values()]
    return any(file.startswith(("/home/", "/root/")) for file in files)


def _account_name(settings: Settings, kind: str) -> str:
    return next((name for name, one in settings.channels.kinds().items() if one == kind), kind)


def _is_unknown(matrix: MatrixAsked, person: str) -> bool:
    at = matrix.answers
    return at is not None and is_unknown_user(at.homeserver, person, at.tls_ca_file)


def _channels(settings: Settings, matrix: MatrixAsked, email: EmailAsked) -> dict[str, str]:
    """The bot's own address on each kind of channel that will be on."""
    found: dict[str, str] = {}
    for kind, asked in (("matrix", matrix), ("email", email)):
        current = _first_of(settings, kind)
        if isinstance(asked, MatrixAsked) and asked.answers is not None:
            found[kind] = asked.answers.user_id
        elif isinstance(asked, EmailAsked) and asked.answers is not None:
            found[kind] = asked.answers.address
        elif current is not None and current.enabled and not asked.off:
            found[kind] = current.user_id if isinstance(current, MatrixConfig) else current.address
    return found


_FILES = {FILE_NAME: STARTER, "HEARTBEAT.md": _CHECKLIST}


def begin_workspace(folder: Path) -> None:
    """Make the folder and its first files, where they are missing; what cannot be written is left out."""
    for name, text in _FILES.items():
        with suppress(OSError):
            make_folder(folder)
            if not (folder / name).exists():
                write_new(folder / name, text.encode())


def free_address() -> str:
    """Return an address of this machine that nothing listens on now; empty if there is none."""
    for port in _PORTS:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    return ""
