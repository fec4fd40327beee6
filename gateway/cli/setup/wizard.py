"""
The steps of `squidbot init`: look, ask and log in, show, write, install, greet, say what comes next. Until
`put` nothing is written and a new login at the homeserver is taken back if it is not wanted any more; after
it nothing is a failure, only something that remains to be done.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from agent_core.files import make_folder, write_new
from agent_core.language import environment_language
from agent_core.persona import FILE_NAME, STARTER
from channels.plugin import AccountConfig
from channels.setup import (
    Dialogue,
    SetupAnswer,
    SetupFailed,
    SetupForm,
    SetupLogin,
    SetupRefused,
    SetupServices,
)
from gateway.cli.login import TerminalPerson
from gateway.cli.setup.config_lines import Answers, Tree, lines_of
from gateway.cli.setup.config_writer import ExistingConfig, plan, read_existing, write_setup
from gateway.cli.setup.dialogue import Cancelled, Terminal
from gateway.cli.setup.model_probe import key_variable
from gateway.cli.setup.options import Given
from gateway.cli.setup.owner_questions import ask_model, ask_owner, ask_timezone
from gateway.cli.setup.systemd import InstalledService, Kind, SystemPlaces, install
from gateway.errors import StateUnusable, describe
from gateway.plugins import channel_kinds, setup_forms
from gateway.routing.access import kind_of
from gateway.settings import Settings
from gateway.system.clock import SystemClock
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


def missing(given: Given, settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """List the missing options, a sentence each, when nobody can be asked. Pure."""
    named, found = given.as_mapping(), []
    forms = {kind: form for kind, form in setup_forms().items() if kind in given.__dataclass_fields__}
    accounts = {kind: _first_of(settings, kind) for kind in forms}
    wanted = [kind for kind, form in forms.items() if form.is_wanted(named, accounts[kind])]
    if not wanted and not all(kind in named for kind in forms):
        give = " or ".join(form.address_flag for form in forms.values())
        off = " and ".join(f"--no-{kind}" for kind in forms)
        found.append(f"No channel is given: give {give} (or {off}, for the terminal alone).")
    for kind in wanted:
        found += forms[kind].missing(named, _own_address(kind, accounts[kind]))
    if wanted and not given.owner and not settings.owner.aliases:
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


def _first_of(settings: Settings, kind: str) -> AccountConfig | None:
    given = getattr(settings.channels, kind, None)
    return cast("AccountConfig | None", given[0] if isinstance(given, tuple) else given)


def _own_address(kind: str, account: AccountConfig | None) -> str:
    return "" if account is None else channel_kinds()[kind].own_address(account)


@dataclass(frozen=True, slots=True)
class ProgramCommand:
    """The call of this program: its name, the options that name the home, all arguments."""

    program: str = "squidbot"
    home_args: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Init:
    """One run of `squidbot init`; ``places`` are a system service's paths."""

    given: Given
    home: Home
    config: Path
    dialogue: Dialogue
    environ: Mapping[str, str]
    called: ProgramCommand = ProgramCommand()
    places: SystemPlaces = SystemPlaces()  # noqa: RUF009 - a frozen value
    _remains: Tree = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Run all steps. Raises `GatewayError`: nothing was written."""
        self._can_begin()
        existing = read_existing(self.config, self.environ)
        self._welcome(existing)
        asked: dict[str, SetupAnswer] = {}
        try:
            for kind, form in setup_forms().items():
                asked[kind] = self._ask_account(existing, form)
            settings, wrote = self._ask_rest_and_write(existing, asked)
        except BaseException as error:
            for login in filter(None, (answer.login for answer in asked.values())):
                login.discard()
            if isinstance(self.dialogue, Terminal) and (again := self.dialogue.repeat(self.called.arguments)):
                self.dialogue.say(f"\nTo go on with the same answers:\n  {self.called.program} {again}")
            if isinstance(error, KeyboardInterrupt):
                self.dialogue.say()
                raise Cancelled("interrupted; nothing was written") from None
            raise
        for kind, answer in asked.items():
            if answer.login is not None:
                self._hand_over(answer.login, kind, _account_name(settings, kind))
        return self._afterwards(settings, wrote=wrote)

    def _can_begin(self) -> None:
        if self.given.install == "system" and os.geteuid() != 0 and self.places == SystemPlaces():
            raise SetupRefused("--install system needs root: run it with sudo, or use --install user")
        root = self.home.root
        if os.geteuid() == 0 and self.given.install != "system" and root.exists() and root.stat().st_uid:
            raise StateUnusable(
                f"{root} belongs to another user, and files made by root would lock that user out; run this "
                "as that user"
            )

    def _welcome(self, existing: ExistingConfig) -> None:
        if not self.dialogue.interactive:
            if lacking := missing(self.given, existing.settings, self.environ):
                raise SetupRefused("\n".join(lacking))
            return
        say = self.dialogue.say
        say("This sets squidbot up. Nothing is written before the end; Ctrl-C leaves everything as it is.")
        if existing.is_there:
            say(f"The defaults are what {self.config} says; it is not changed, and you see what to add.")
        say()

    def _ask_account(self, existing: ExistingConfig, form: SetupForm[Any]) -> SetupAnswer:
        name = _account_name(existing.settings, form.kind)
        services = SetupServices(
            clock=SystemClock(), person=TerminalPerson(), state=lambda: self.home.state(name)
        )
        current = _first_of(existing.settings, form.kind)
        return form.ask(self.given.as_mapping(), current, self.dialogue, services)

    def _ask_rest_and_write(
        self, existing: ExistingConfig, asked: Mapping[str, SetupAnswer]
    ) -> tuple[Settings, bool]:
        owner = ask_owner(
            self.given,
            existing.settings,
            self.dialogue,
            channels=_channels(existing.settings, asked),
            is_unknown=partial(_is_unknown, asked),
        )
        zone = ask_timezone(self.given, existing.settings, self.dialogue)
        model = ask_model(self.given, existing.settings, self.dialogue, self.environ)
        planned = plan(
            existing,
            Answers(
                owner,
                model,
                {kind: each.settings for kind, each in asked.items() if each.settings is not None},
                frozenset(kind for kind, each in asked.items() if each.off),
                zone,
                language="" if existing.is_there else environment_language(self.environ),
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
            raise SetupFailed("nothing was written")
        settings, self._remains = write_setup(planned, self.environ)
        for warning in settings.warnings:
            say(f"Warning: {warning}")
        if self._remains:
            say(f"\nPut this into {self.config}; where a key is there already, change its value:")
            say()
            for line in lines_of(self._remains):
                say(line)
        return settings, bool(planned.told)

    def _is_wanted(self) -> bool:
        """Ask before all is written; one Ctrl-C alone does not throw all answers away."""
        try:
            return self.dialogue.agree("Write this?", default=True)
        except KeyboardInterrupt:
            self.dialogue.say("\nNothing is written yet. Ctrl-C again leaves.")
            return self.dialogue.agree("Write this?", default=True)

    def _hand_over(self, login: SetupLogin, kind: str, name: str) -> None:
        """Hand this login to the daemon, which otherwise logs in by itself."""
        try:
            if self.given.install == "system" or kind in self._remains.get("channels", {}):
                login.discard()
            else:
                self.home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                login.keep(self.home.state(name))
        except OSError as error:
            self.dialogue.say(f"The login cannot be saved ({error}); the daemon logs in when it starts.")

    def _afterwards(self, settings: Settings, *, wrote: bool) -> int:
        """Do the last steps, whose failure does not undo the setup; return the exit code."""
        say = self.dialogue.say
        running = holder_of(self.home) is not None
        installed = InstalledService()
        remaining: list[str] = []
        persona = self._make_workspace(self.home.path(settings.agents.workspace))
        kind = self.given.install or self._choose_unit()
        if kind is not None:
            installed = install(
                cast("Kind", kind),
                arguments=self.called.home_args,
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
        elif running and wrote:
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
        self._next(installed, settings, persona)
        return 0

    def _make_workspace(self, folder: Path) -> str:
        """Make the workspace, but a service's; ask at a terminal for name and manner, and return them."""
        if self.given.install == "system":
            return ""
        persona = ""
        if self.dialogue.interactive and not (folder / FILE_NAME).exists():
            with suppress(Cancelled, KeyboardInterrupt):
                persona = self.dialogue.ask(
                    "Its name and manner, such as: You are Ada, warm and brief (empty: later)"
                )
        create_workspace(folder, persona)
        return persona

    def _login_left(self, settings: Settings) -> list[str]:
        """Return what is to do if an account waits for a person to log it in."""
        lacking = []
        for kind, form in setup_forms().items():
            account = _first_of(settings, kind)
            state = self.home.state(_account_name(settings, kind))
            if account is not None and form.lacks_login(account, state):
                lacking.append(f"log the bot in: {self.called.program} {kind} login")
        return lacking

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

        again = f"{self.called.program} send TO TEXT"
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
            form = setup_forms().get(settings.channels.kinds().get(name, ""))
            where = "look there" if form is None else form.greeted_at.format(address)
            if one.sent:
                self.dialogue.say(f"A first message went to {address} ({name}): {where}.")
            else:
                remaining.append(f"the first message to {address} has not arrived: {one.told}")
        return remaining

    def _next(self, installed: InstalledService, settings: Settings, persona: str) -> None:
        say = self.dialogue.say
        rest = "".join(f" {shlex.quote(word)}" for word in self.called.home_args)
        say("\nNext:")
        called = f"  {self.called.program}"
        say(f"{called} check{rest}      does everything work?")
        if installed.running:
            user = "" if self.given.install == "system" else " --user"
            say(f"  systemctl{user} status squidbot")
        else:
            talk = "write to it" if settings.channels.enabled() else f"{self.called.program} chat{rest}"
            say(f"{called} run{rest}        the daemon; then {talk}")
        say(f"{called} status{rest}     what it is doing")
        if settings.gateway.http and settings.gateway.http.console:
            say(f"{called} console{rest}    the same in a browser, and what waits for your yes")
        if not persona:
            say("To give it a name and a manner, send it `!persona You are Ada, warm and brief.`")
        kinds = {settings.channels.kinds()[name] for name in settings.channels.enabled()}
        if settings.voice.transcribe is None and any(channel_kinds()[kind].has_rooms for kind in kinds):
            say("Voice messages stay files until you set voice.transcribe: see docs/voice-messages.md")


def _looks_into_homes(settings: Settings) -> bool:
    files = [str(getattr(one, "tls_ca_file", None) or "") for one in settings.channels.enabled().values()]
    return any(file.startswith(("/home/", "/root/")) for file in files)


def _account_name(settings: Settings, kind: str) -> str:
    return next((name for name, one in settings.channels.kinds().items() if one == kind), kind)


def _is_unknown(asked: Mapping[str, SetupAnswer], person: str) -> bool:
    answer = asked.get(kind_of(person) or "")
    return answer is not None and answer.is_unknown is not None and answer.is_unknown(person)


def _channels(settings: Settings, asked: Mapping[str, SetupAnswer]) -> dict[str, str]:
    """The bot's own address on each kind of channel that will be on."""
    found: dict[str, str] = {}
    for kind, answer in asked.items():
        current = _first_of(settings, kind)
        is_on = current is not None and current.enabled and not answer.off
        if address := answer.address or (_own_address(kind, current) if is_on else ""):
            found[kind] = address
    return found


_FILES = {FILE_NAME: STARTER, "HEARTBEAT.md": _CHECKLIST}


def create_workspace(folder: Path, persona: str = "") -> None:
    """Make the folder and its first files, where they are missing; what cannot be written is left out."""
    texts = {**_FILES, FILE_NAME: f"{STARTER}\n{persona}\n"} if persona else _FILES
    for name, text in texts.items():
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
