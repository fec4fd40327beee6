"""
The commands ``!link`` and ``!unlink``: several addresses of one person. Whoever wants one more names it, the
code counts from there alone, and there it is confirmed after it was told whose person that makes it. So
nobody gains anything by a code that somebody was made to send. The owner's addresses are in the settings
alone: no code makes an owner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog

from agent_core.language import _, gettext_noop, list_of, speaking
from agent_core.messages import MessageContext, OutboundKind, SessionKey
from channels.split import message_parts
from gateway.proactive.owner_alerts import OwnerAlerts, link_alert
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Access, Role, kinds_of, normalise
from gateway.routing.links import LinkedAddress, PeopleLinks
from gateway.store.stores import NewOutbound, OutboxStore
from gateway.turns.commands.chat_command_context import NOT_PRIVATE, CommandContext, is_surely_private
from gateway.turns.questions.question_text import safe_line
from gateway.turns.questions.yes_and_no import yes_or_no

_CODE = re.compile(r"\d{4}[ -]?\d{4}")
_OWNER = gettext_noop(
    "You are my owner: your own addresses are in `owner.aliases` of the settings, and no code makes one. "
    "`!unlink ADDRESS` ends a link of somebody else. Nothing was done."
)
_OWNERS_ADDRESS = gettext_noop(
    "You are my owner, so `{address}` is yours once it stands in the settings; no code makes one. Add "
    "`{address}` to `owner.aliases`, in the file or on the console's page Settings, then reload or restart "
    "me (`systemctl --user reload squidbot`). Nothing was done."
)
_HOW = gettext_noop(
    "`!link ADDRESS`, with another address at which you write to me, gives you a code. Send that to me from "
    "there, and I know that both are you: with one memory. `!unlink ADDRESS` ends it."
)
_WRONG = gettext_noop(
    "That is not a code for this address, or it is too old. At your other address, `!link ADDRESS` with this "
    "one gives you a new code. Nothing was done."
)
_SOMEBODYS = gettext_noop(
    "This address is somebody's already: it is linked, or my owner has named it. `!unlink` ends a link. "
    "Nothing was done."
)
_NOTHING_SHOWN = gettext_noop("Nothing waits for your yes here. `!link` says how to begin. Nothing was done.")
_TOO_MANY = gettext_noop("There are too many links at the moment. Try again in an hour, or ask my owner.")
_FIRST = gettext_noop(
    "`{address}` is the first address of a person, or one of the settings. For the first one, unlink the "
    "others. Nothing was done."
)
_ALONE = gettext_noop(
    "`{address}` is linked with no other address now. What was said before stays where it is."
)
_NOT_YOURS = gettext_noop("`{address}` is not linked with you now. What was said before stays where it is.")
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class LinkCommand:
    """Answers ``!link`` and ``!unlink``. One instance for all sessions."""

    links: PeopleLinks
    access: Access
    outbox: OutboxStore
    notifier: OwnerNotifier
    alerts: OwnerAlerts

    async def link(self, asked: CommandContext) -> str:
        """Give a code for an address, take one, or take the yes; doing it twice is harmless."""
        argument, me = _argument(asked), normalise(asked.message.sender.address)
        if asked.is_owner:
            new = _address(argument)
            return _(_OWNERS_ADDRESS, address=safe_line(new)) if new else _OWNER
        if not self._may_link(asked):
            return NOT_PRIVATE
        if (agreed := yes_or_no(argument)) is not None:
            return await (self._confirm(me) if agreed else self._decline(me))
        if _CODE.fullmatch(argument):
            return await self._show(me, argument)
        if address := _address(argument):
            return await self._request(asked, me, address)
        return self._overview(me)

    async def unlink(self, asked: CommandContext) -> str:
        """Make an address of the person's, for the owner any, a person of its own; repeatable."""
        if not (asked.owner if asked.is_owner else self._may_link(asked)):
            return NOT_PRIVATE
        me = normalise(asked.message.sender.address)
        address = normalise(_argument(asked)) or me
        if asked.is_owner or address in self.access.household.same_person([me]):
            _log.info("person.unlinked", was_linked=await self.links.unlink(address))
        of_person = self.access.household.same_person([address])
        if len(of_person) > 1 and (asked.is_owner or me in of_person):
            text = _FIRST
        elif asked.is_owner or address == me:
            text = _ALONE
        else:
            text = _NOT_YOURS
        return _(text, address=safe_line(address))

    def _may_link(self, asked: CommandContext) -> bool:
        """Return True for a proved message in private by somebody who may write here, and no program's."""
        message = asked.message
        role = self.access.role(message.channel, message.sender.address, verified=message.sender.verified)
        here = role is Role.ALLOWED and not self.access.borrows(message.channel)
        return here and is_surely_private(asked, self.access)

    async def _decline(self, me: str) -> str:
        await self.links.decline(me)
        return _("Done: this address stays as it is.")

    def _overview(self, me: str) -> str:
        linked = [f"`{safe_line(one)}`" for one in self.access.household.rules(me).addresses if one != me]
        told = _("With this address you are also {addresses}.", addresses=list_of(linked)) if linked else ""
        return "\n\n".join(filter(None, (_(_HOW), told)))

    async def _request(self, asked: CommandContext, me: str, address: str) -> str:
        if address in self.access.household.same_person([me]):
            return _("`{address}` is you already. Nothing was done.", address=safe_line(address))
        code = await self.links.request(me, address, str(asked.turn.place))
        if not code:
            return _TOO_MANY
        return _(
            "Send me this from `{address}` within 15 minutes: `!link {code}`\n\nIt counts from there alone, "
            "and once. Whoever writes from there can then read what I know of you, so name only an address "
            "that is yours.",
            address=safe_line(address),
            code=code,
        )

    async def _show(self, me: str, code: str) -> str:
        if self.access.household.rules(me).addresses:
            return _(_SOMEBODYS)
        found = await self.links.show(me, code)
        if found is None:
            return _WRONG
        others = self.access.household.same_person([found.main])
        return _(
            "{people} wants to be one person with you. Only if that is you, too, write `!link yes`: I then "
            "have one memory for both, that of `{main}`, and whoever writes from there can read and erase "
            "what I know of you. If somebody has sent you this code, write `!link no`, and nothing happens.",
            people=list_of([f"`{safe_line(one)}`" for one in sorted(others)]),
            main=safe_line(self.access.household.main_address(found.main)),
        )

    async def _confirm(self, me: str) -> str:
        made = await self.links.confirm(me)
        if made is None:
            return _NOTHING_SHOWN
        await self._notify_first(me, made)
        alert = link_alert(me, made.main, made.at)
        await self.alerts.store_now(alert.about, alert.text, alert.once)
        _log.info("person.linked")
        return _(
            "Done: you are `{main}` here from your next message on. What I knew of this address alone is set "
            "aside; `!unlink` brings it back.",
            main=safe_line(made.main),
        )

    async def _notify_first(self, me: str, made: LinkedAddress) -> None:
        """Tell the person in the conversation where they asked, once, if its channel still exists."""
        place = SessionKey.parse(made.place)
        channel = self.notifier.contact.channels.get(place.channel)
        if channel is None:
            return
        with speaking(self.access.household.rules(made.main).language):
            text = _(
                "`{address}` is linked with you now: I have one memory for both. If that was not you, write "
                "`!unlink {address}` at once, and tell my owner.",
                address=safe_line(me),
            )
        to = MessageContext(person=made.main)
        parts = message_parts(text, (), channel.capabilities)
        notices = [
            NewOutbound(place.channel, channel.account, place, part, OutboundKind.NOTICE, to)
            for part, _f in parts
        ]
        await self.outbox.post(notices, once=(f"alert {me}", made.at))


def _address(argument: str) -> str:
    """The address that somebody has named; empty: it is none."""
    address = normalise(argument)
    return address if kinds_of(address) and "*" not in address and len(address.split()) == 1 else ""


def _argument(asked: CommandContext) -> str:
    return asked.command.argument.strip("`<>'\" .!")
