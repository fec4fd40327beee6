"""
Mail addresses in header fields (RFC 5322, section 3.4), read strictly. Pure. The standard library's parser is
lenient, differs between Python versions and recurses on nested comments; identity needs the opposite.
`parse_mailboxes` is one loop over the characters. It knows quoted strings, comments of any depth, angle
brackets and commas; anything else, such as a group, a route, an encoded word inside an address, a control
character or a second address in front of the angle bracket (of which mail servers may have looked at the
first), is an error, and an error is never somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_ANYWHERE = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[\w.-]{1,253}")


class AddressInvalid(ValueError):
    """The text is not one plain mail address."""


@dataclass(frozen=True, slots=True)
class MailboxAddress:
    """A display name, which is decoration, and an address in normal form."""

    name: str
    address: str


def normalise(text: str) -> str:
    """Return an address in lower case, its domain in ASCII (IDNA). Raises AddressInvalid."""
    local, at, domain = text.strip().rpartition("@")
    if not at or len(text) > 320:
        raise AddressInvalid(f"{text[:80]!r} has no @, or is too long")
    if not _LOCAL.fullmatch(local) or local.startswith(".") or local.endswith(".") or ".." in local:
        raise AddressInvalid(f"{local[:80]!r} cannot stand before the @")
    if local.startswith("=?"):
        raise AddressInvalid("an encoded word cannot be an address")
    ascii_domain = to_ascii(domain)
    if not ascii_domain.isascii():  # in lower case some such letters are ASCII
        raise AddressInvalid(f"{domain[:80]!r} is not a domain")
    ascii_domain = ascii_domain.lower().removesuffix(".")
    if not all(_LABEL.fullmatch(label) for label in ascii_domain.split(".")):
        raise AddressInvalid(f"{domain[:80]!r} is not a domain")
    return f"{local.lower()}@{ascii_domain}"


def to_ascii(domain: str) -> str:
    """
    A domain in the ASCII form in which domains are compared (IDNA 2008); as it is if it has none.

    Nothing but case is mapped: a letter that only looks like another, or becomes an ASCII one, is no letter
    of a domain, so nobody is taken for somebody of a plain domain.
    """
    if domain.isascii() or any(not char.isascii() and char.lower().isascii() for char in domain):
        return domain
    # Loaded only for a name that needs it: its tables are large.
    import idna  # noqa: PLC0415

    try:
        return idna.encode(domain[:253].lower()).decode("ascii")
    except idna.IDNAError:
        return domain


def without_tag(address: str) -> str:
    """``bob+tag@host`` → ``bob@host``."""
    local, _, domain = address.rpartition("@")
    return f"{local.split('+', 1)[0]}@{domain}"


def find_addresses(value: str) -> set[str]:
    """Everything in a field that looks like an address, lower case. Not for identity."""
    return {found.lower() for found in find_in_order(value)}


def find_in_order(value: str) -> list[str]:
    """The same addresses in the order of the field."""
    found = (match.group(0).rpartition("@") for match in _ANYWHERE.finditer(value))
    return [f"{local}@{to_ascii(domain)}" for local, _, domain in found]


def parse_mailboxes(value: str) -> list[MailboxAddress]:
    """Parse a From or Reply-To field. Raises AddressInvalid unless all are plain mailboxes."""
    mailboxes: list[MailboxAddress] = []
    reader = _Reader(value)
    while True:
        mailbox = reader.mailbox_or_none()
        if mailbox is not None:
            mailboxes.append(mailbox)
        if reader.is_at_end:
            return mailboxes


def mailboxes_or_none(values: Iterable[str]) -> tuple[str, ...] | None:
    """The addresses in several address fields, each once; None if any of it cannot be read."""
    try:
        return tuple(dict.fromkeys(mailbox.address for value in values for mailbox in parse_mailboxes(value)))
    except AddressInvalid:
        return None


class _Reader:
    """Reads one mailbox after another, up to the comma."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._value)

    def mailbox_or_none(self) -> MailboxAddress | None:
        words: list[str] = []
        bare: list[str] = []
        quoted = False
        angle: str | None = None
        while not self.is_at_end:
            char = self._value[self._position]
            self._position += 1
            if char == ",":
                break
            if char == "(":
                self._comment()
                # It parts words: `ali(x)ce@mail.test` is not alice.
                words.append(" ")
                bare.append(" ")
            elif angle is not None and not char.isspace():
                raise AddressInvalid("text after the address")
            elif char == '"':
                words.append(self._quoted())
                quoted = True
            elif char == "<":
                angle = self._angle()
            elif char in ":;>)[]" or (ord(char) < 0x20 and char not in "\t\r\n") or char == "\x7f":
                raise AddressInvalid(f"{char!r} does not belong here")
            else:
                words.append(char)
                bare.append(char)
        return _mailbox("".join(words).strip(), "".join(bare).strip(), angle, quoted=quoted)

    def _quoted(self) -> str:
        out: list[str] = []
        while not self.is_at_end:
            char = self._value[self._position]
            self._position += 1
            if char == '"':
                return "".join(out)
            if char == "\\" and not self.is_at_end:
                char = self._value[self._position]
                self._position += 1
            out.append(char)
        raise AddressInvalid("a quoted name is not closed")

    def _comment(self) -> None:
        depth = 1
        while not self.is_at_end and depth:
            char = self._value[self._position]
            self._position += 1
            if char == "\\":
                self._position += 1
            elif char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
        if depth:
            raise AddressInvalid("a comment is not closed")

    def _angle(self) -> str:
        end = self._value.find(">", self._position)
        if end < 0:
            raise AddressInvalid("an address is not closed")
        text = self._value[self._position : end]
        self._position = end + 1
        return text


def _mailbox(text: str, bare: str, angle: str | None, *, quoted: bool) -> MailboxAddress | None:
    """
    Build the mailbox from the parts read up to a comma; None for nothing.

    Args:
        text: All words outside of angle brackets.
        bare: The same without quoted strings.
        angle: The text in angle brackets.
        quoted: True if there was a quoted string, even an empty one.
    """
    if angle is not None:
        address = normalise(angle)
        if find_addresses(bare) - {address}:
            raise AddressInvalid("another address stands where the name should be")
        return MailboxAddress(text, address)
    if quoted:
        # `"alice@"mail.test` and `al""ice@mail.test` are no addresses; not every program agrees whose.
        raise AddressInvalid("a quoted string where only an address may stand")
    return MailboxAddress("", normalise(text)) if text else None
