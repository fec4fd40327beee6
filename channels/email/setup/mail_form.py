"""Asks for a mailbox, and logs in to IMAP and SMTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from channels.base import ChannelAuthFailed, ChannelClock, ChannelError
from channels.email.config import EmailConfig
from channels.email.parse.mail_addresses import AddressInvalid, normalise
from channels.email.setup.mail_probe import MailboxFacts, MailboxLogin, probe_mailbox
from channels.email.setup.mail_providers import MailGuess, ProviderServer, guess, parse_place
from channels.setup import (
    TRIES,
    Dialogue,
    Given,
    SecretLine,
    SetupAnswer,
    SetupFailed,
    SetupForm,
    SetupRefused,
    SetupServices,
    asked_authority,
    check_option,
)

_CAPABILITIES = ("IDLE", "MOVE", "UIDPLUS", "CONDSTORE")


class EmailForm(SetupForm[EmailConfig]):
    """The questions for a mailbox."""

    kind = "email"
    question = "Connect it to a mailbox?"
    owner_question = "Your own mail address"
    address_flag = "--email"
    options = ("email_address", "email_password", "email_user", "imap", "smtp")
    missing_texts = (
        "The bot's mail address is missing: give --email name@domain.",
        (
            "The password of the mailbox is missing: give --email-password-file FILE (or "
            "SQUIDBOT_INIT_EMAIL_PASSWORD)."
        ),
    )
    greeted_at = "look in INBOX"

    def own_login(self, current: EmailConfig) -> str:
        """Return a sentence for a login with tokens."""
        told = "The mailbox logs in with tokens (squidbot email login); init leaves that unchanged."
        return told if current.oauth is not None else ""

    def log_in(
        self, given: Given, current: EmailConfig | None, dialogue: Dialogue, services: SetupServices
    ) -> SetupAnswer:
        """Find the servers, and log in to both."""
        return _logged_in(given, current, dialogue, services.clock)

    def check_address(self, text: str) -> str:
        """A plain address."""
        return mail_address(text)


def email_settings(
    login: MailboxLogin,
    imap: ProviderServer,
    smtp: ProviderServer,
    *,
    password: str | None,
    sent_copy: str,
    proof: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The settings of a mailbox; ``password`` and ``proof`` None: what is configured stays."""
    made: dict[str, Any] = {"enabled": True, "address": login.address, "username": login.username}
    if password is not None:
        made["password"] = SecretLine("email-password", password)
    made |= {"imap": imap.as_settings(), "smtp": smtp.as_settings()}
    if login.tls_ca_file:
        made["tls_ca_file"] = login.tls_ca_file
    return {**made, **(proof or {}), "sent_copy": sent_copy, "allow_from": []}


def proof_settings(authserv_ids: tuple[str, ...], *, headerless: bool) -> dict[str, Any]:
    """The settings by which senders are proven."""
    if headerless:
        return {"trust_headerless_auth_results": True}
    return {"trusted_authserv_ids": list(authserv_ids)} if authserv_ids else {"dkim": "verify"}


def mail_address(text: str) -> str:
    """A plain address. Raises `ValueError`: it is not one."""
    try:
        return normalise(text)
    except AddressInvalid as error:
        raise ValueError(f"this is not a mail address: {error}") from None


def _logged_in(
    given: Given, current: EmailConfig | None, dialogue: Dialogue, clock: ChannelClock
) -> SetupAnswer:
    address = _address(given, current, dialogue)
    same = current if current is not None and current.address == address else None
    where = _where(given, same, address)
    if where.provider:
        dialogue.say(f"  That is {where.provider}{f': {where.hint}' if where.hint else ''}.")
    ca_file = given.get("tls_ca_file") or (str(same.tls_ca_file) if same and same.tls_ca_file else None)
    kept_proof = _is_proven(same) and not given.get("authserv_id")
    username = given.get("email_user") or (same.username if same else "")
    password = given.get("email_password")
    asks, refusals, tried = True, 0, ""
    for attempt in range(TRIES):
        first = attempt == 0
        if dialogue.interactive and asks and refusals != 1 and not (given.get("email_user") and first):
            username = dialogue.ask("  The user name for the login", username or address, flag="--email-user")
        username = username or address
        if asks and (password is None or not first):
            kept = bool(tried) or (first and same is not None and same.password is not None)
            empty = "keeps the present one" if kept else ""
            question = f"  The password of {username}"
            password = (
                dialogue.secret(question, flag="--email-password-file FILE", empty=empty) or tried or None
            )
        known = same.password.get_secret_value() if same and same.password else ""
        login = MailboxLogin(address, username, known if password is None else password, ca_file)
        dialogue.say("  logging in, for reading and for sending …")
        try:
            facts = probe_mailbox(
                login,
                where,
                trusted=given.get("authserv_id"),
                search=not kept_proof,
                say=dialogue.say,
                now=clock.now,
            )
        except (ChannelError, ValueError) as error:
            if not dialogue.interactive or attempt == TRIES - 1:
                raise SetupFailed(f"mail: {error}\n{_option_for(error)} Nothing was written.") from error
            dialogue.say(f"  That did not work: {error}")
            # What was not refused need not be typed again. What is refused twice may be the name.
            is_refusal = isinstance(error, ChannelAuthFailed)
            refusals, tried = (refusals + 1, "") if is_refusal else (0, password or "")
            authority = asked_authority(error, dialogue)
            asks, ca_file = not authority, authority or ca_file
            where = _asked_places(where, dialogue) if asks and not refusals else where
            continue
        _show_facts(facts, dialogue, kept_proof=kept_proof)
        made = email_settings(
            login,
            facts.imap,
            facts.smtp,
            password=password,
            sent_copy=same.sent_copy if same else where.sent_copy,
            proof=None if kept_proof else proof_settings(facts.authserv_ids, headerless=facts.headerless),
        )
        return SetupAnswer(settings=made, address=address)
    raise AssertionError("the last try has raised or returned")


def _option_for(error: Exception) -> str:
    if isinstance(error, ChannelAuthFailed):
        return "--email-user and --email-password-file say how to log in."
    if "tls_ca_file" in str(error):
        return "--tls-ca-file names the certificate of your own authority."
    return "--imap and --smtp name other servers."


def _address(given: Given, current: EmailConfig | None, dialogue: Dialogue) -> str:
    if address := given.get("email_address"):
        return check_option(address, mail_address, "--email")
    question = "  The bot's mail address (a mailbox of its own)"
    return dialogue.ask(question, current.address if current else "", check=mail_address, flag="--email")


def _where(given: Given, same: EmailConfig | None, address: str) -> MailGuess:
    """The servers that were named, else those that are configured, else a guess."""
    imap, smtp = (
        parse_server_option(given[kind], kind) if given.get(kind) else None for kind in ("imap", "smtp")
    )
    if same is not None:
        imap = imap or ProviderServer(same.imap.host, same.imap.port, same.imap.security)
        smtp = smtp or ProviderServer(same.smtp.host, same.smtp.port, same.smtp.security)
    found = guess(address, imap)
    return replace(found, imap=(imap,) if imap else found.imap, smtp=(smtp,) if smtp else found.smtp)


def parse_server_option(text: str, kind: str) -> ProviderServer:
    """A server that an option names. Raises `SetupRefused`: it is not one."""
    try:
        return parse_place(text, "imap" if kind == "imap" else "smtp")
    except ValueError as error:
        raise SetupRefused(f"--{kind}: {error}") from error


def _asked_places(where: MailGuess, dialogue: Dialogue) -> MailGuess:
    """Let the servers be named; the guess stays what is proposed."""
    asked = {}
    for kind, places in (("imap", where.imap), ("smtp", where.smtp)):
        proposed = str(places[0]) if len(places) == 1 else "find it"

        def check(text: str, kind: str = kind) -> str:
            return text if text == "find it" else str(parse_place(text, "imap" if kind == "imap" else "smtp"))

        text = dialogue.ask(f"  The {kind.upper()} server", proposed, check=check)
        if text != "find it":
            dialogue.note(f"--{kind}", text)
        asked[kind] = places if text == "find it" else (parse_server_option(text, kind),)
    return replace(where, imap=asked["imap"], smtp=asked["smtp"])


def _is_proven(same: EmailConfig | None) -> bool:
    """Return True if the proof of senders is configured, so that nothing must be probed."""
    return same is not None and (
        bool(same.trusted_authserv_ids or same.trust_headerless_auth_results or same.subaddress_secrets)
        or same.dkim == "verify"
        or same.sender_verification == "off"
    )


def _show_facts(facts: MailboxFacts, dialogue: Dialogue, *, kept_proof: bool) -> None:
    known = [name for name in _CAPABILITIES if name in facts.capabilities]
    dialogue.say(f"  Logged in: {facts.imap} and {facts.smtp}.")
    dialogue.say(
        f"  {facts.mails} mails in INBOX; the server supports {', '.join(known) or 'the minimum only'}."
    )
    sent = facts.sent_folder or "none yet; squidbot creates it"
    dialogue.say(f"  The folder for sent mail: {sent}.")
    if kept_proof:
        dialogue.say("  The verification of senders stays as configured.")
    elif facts.headerless:
        dialogue.say(
            f"  Senders are verified by Authentication-Results without a server name ({facts.proven_by})."
        )
    elif facts.authserv_ids:
        dialogue.say(f"  Senders are verified by {', '.join(facts.authserv_ids)} ({facts.proven_by}).")
    else:
        why = facts.proven_by or "the server does not report on senders"
        dialogue.say(f"  {why}; so squidbot verifies senders by their DKIM signatures (dkim: verify).")
