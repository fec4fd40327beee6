"""
The settings of single rooms, found by the room's id. A rule may be given for an alias. Which room that is,
the homeserver says once per run; until it has said so, the rule does not apply and the settings of the
channel do. An alias that was moved to another room counts from the next start on. A room that has taken the
place of another one goes on under its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from channels.base import PlaceRules
from channels.matrix.client.homeserver import CLIENT, Homeserver, LinkBroken, quote_path
from channels.matrix.client.json_access import text_of
from channels.matrix.config import MatrixConfig, RoomRule, names_person
from channels.matrix.events.inbound_events import BotIdentity

_NO_RULE = RoomRule()
_log = structlog.get_logger(__name__)


async def find_alias(homeserver: Homeserver, alias: str) -> str | None:
    """Return the room id of an alias, None if unknown. Raises LinkBroken."""
    answer = await homeserver.request("GET", f"{CLIENT}/directory/room/{quote_path(alias)}", timeout_s=10.0)
    return text_of(answer.body, "room_id") or None if answer.is_success else None


class RoomRules:
    """
    The rules of one account; ``allows`` decides in rooms without a list.

    ``conversation_of`` is the same for a room and those it replaced; ``language_of`` people hear.
    """

    def __init__(
        self,
        config: MatrixConfig,
        conversation_of: Callable[[str], str],
        allows: Callable[[str], bool] | None = None,
        language_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.language_of = language_of
        self._conversation_of = conversation_of
        self.config = config
        self.admits = allows or config.allows
        self._by_room: dict[str, RoomRule] = {
            name: rule for name, rule in config.rooms.items() if name.startswith("!")
        }
        self._aliases: Mapping[str, RoomRule] = {
            name: rule for name, rule in config.rooms.items() if name.startswith("#")
        }
        self._unresolved = set(self._aliases)

    async def resolve(self, homeserver: Homeserver) -> None:
        """Find the rooms of the aliases; an unknown alias is logged and left out."""
        for alias, rule in self._aliases.items():
            try:
                room_id = await find_alias(homeserver, alias)
            except LinkBroken as error:
                _log.warning("matrix.alias_unresolved", alias=alias, error=str(error))
                continue
            self._unresolved.discard(alias)
            if room_id is None:
                _log.warning("matrix.alias_unresolved", alias=alias, error="no such room")
            else:
                # A rule for the id itself is the more exact one.
                self._by_room.setdefault(room_id, rule)

    def rule_of(self, room_id: str) -> RoomRule:
        """The rule of a room."""
        if not self._by_room:
            return _NO_RULE
        exact = self._by_room.get(room_id)
        if exact is not None:
            return exact
        same = self._conversation_of(room_id)
        rules = (rule for name, rule in self._by_room.items() if self._conversation_of(name) == same)
        return next(rules, _NO_RULE)

    def place_rules(self, room_id: str) -> PlaceRules:
        """See `SupportsPlaceRules`."""
        rule = self.rule_of(room_id)
        if rule is _NO_RULE and any(self._aliases[alias].tools is not None for alias in self._unresolved):
            return PlaceRules(tools=())  # it may be that room
        return PlaceRules(rule.tools, rule.language, rule.persona.strip(), rule.pool)

    def me_in(self, room_id: str, me: BotIdentity, sender: str) -> BotIdentity:
        """The bot's identity in a room, for a message of ``sender``."""
        if me.group_allow_from and room_id not in me.group_allow_from:
            same = self._conversation_of(room_id)
            if any(self._conversation_of(name) == same for name in me.group_allow_from):
                me = replace(me, group_allow_from=(*me.group_allow_from, room_id))
        rule = self.rule_of(room_id)
        if language := rule.language or self.language_of(sender):
            me = replace(me, language=language)
        if rule is _NO_RULE:
            return me
        changed = replace(me, threads=rule.threads or me.threads)
        match rule.policy:
            case None:
                return changed
            case "mention" | "open":
                return replace(changed, group_policy=rule.policy)
            case "allowlist":
                named = names_person(rule.allow_from or (), sender)
                return replace(changed, group_policy="open" if named else "mention")
            case "off":
                return replace(changed, group_policy="allowlist", group_allow_from=(), silent=True)

    def allows(self, room_id: str, sender: str) -> bool | None:
        """Return True if the room's own list contains the sender; None if it has no list."""
        entries = self.rule_of(room_id).allow_from
        return None if entries is None else names_person(entries, sender)

    def is_context(self, room_id: str, sender: str) -> bool:
        """Return True if the sender may talk to the bot in a room, as far as the channel knows."""
        here = self.allows(room_id, sender)
        return self.admits(sender) if here is None else here
