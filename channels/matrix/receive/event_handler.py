"""
Decides what one decrypted event means for the conversation: a message, an amendment of an earlier one, a
reaction to a message of ours, or nothing. ``inbound``, ``edits``, ``threads`` and ``group_context`` know how;
here it is put together with what must be asked of others: the inbox (is this an answer to us?) and the
homeserver (what does it answer?). Both are only asked for people who may talk to the bot, so strangers cost a
look at their event and no more. The homeserver may be slow: what needs it comes as `Unfinished`, and who
reads decides when it is finished.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import anyio
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.bounded import Bounded
from agent_core.messages import (
    BY_EDIT,
    Amendment,
    Audience,
    Background,
    InboundMessage,
    LineNote,
    MessageContext,
    SessionKey,
)
from channels.base import ChannelClock, ChannelUnavailable, Inbox
from channels.matrix.client.homeserver import Homeserver
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.edits import (
    EarlyEdits,
    Senders,
    bundled_edit,
    edited_text,
    edits,
    mark_as_edit,
    read_edit,
    redacts,
)
from channels.matrix.events.group_context import GroupContext
from channels.matrix.events.inbound_events import BotIdentity, MatrixRoute, Skip, mentions, read_event
from channels.matrix.events.matrix_threads import SHARED, is_shared, root_of
from channels.matrix.events.media_events import FileNote
from channels.matrix.events.outbound_events import transaction_id
from channels.matrix.events.polls import ENDS, poll_of
from channels.matrix.events.room_policy import RoomRules
from channels.matrix.receive.reply_context import Asker, Decrypt, ReplyContext
from channels.matrix.rooms.join_times import JoinTimes
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.rooms.upgrades import may_moderate, may_redact
from channels.matrix.send.reactions import reacts_to, read_reaction
from channels.matrix.send.sent_lookup import SentLookup

_MARK_LIMIT_S = 10.0
_MAX_PLACES = 1000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A message as far as it can be read without the homeserver, and the request for the rest."""

    message: InboundMessage
    finish: Callable[[], Awaitable[InboundMessage | Skip]]

    @property
    def without(self) -> InboundMessage | Skip:
        """The result if the homeserver cannot be reached: the subject of a reaction is then unknown."""
        return Skip("no_message") if self.message.kind == "reaction" else self.message


class EventHandler:
    """Interprets the events of one account by ``rules``; ``decrypt`` has no other effect."""

    def __init__(
        self,
        homeserver: Homeserver,
        inbox: Inbox,
        *,
        me: BotIdentity,
        rooms: Rooms,
        clock: ChannelClock,
        rules: RoomRules,
        decrypt: Decrypt,
        is_owner: Callable[[str], bool] = lambda _user: False,
    ) -> None:
        self.homeserver = homeserver
        self.inbox = inbox
        self.me = me
        self.rooms = rooms
        self._config = rules.config
        self.clock = clock
        self._decrypt = decrypt
        self.rules = rules
        self._sent = SentLookup(homeserver, me.user_id)
        self._quotes = ReplyContext(homeserver, rooms, decrypt, user_id=me.user_id)
        talk = rules.config.group_context
        self._talk = GroupContext(messages=talk.messages, chars=talk.chars)
        self.joinings = JoinTimes(me.user_id, rooms)
        self.is_owner = is_owner
        self._early = EarlyEdits(is_owner)
        self._senders = Senders()
        self._begun: Bounded[tuple[str, str], None] = Bounded(_MAX_PLACES)
        """Threads whose beginning was told already."""
        self._ending: Bounded[tuple[str, str], None] = Bounded(_MAX_PLACES)
        """Who has ended a poll in which room, and asked nothing since."""
        self._ours: Bounded[tuple[str, str], None] = Bounded(_MAX_PLACES)
        """Threads in which the bot has answered."""
        self._gone: Bounded[tuple[str, str], str] = Bounded(_MAX_PLACES)
        """Events that were taken back, and whose they have to be for that to count; empty: anybody's."""

    async def start(self) -> None:
        """Ask the homeserver which rooms the rules are about."""
        await self.rules.resolve(self.homeserver)

    async def read(self, room_id: str, event: JsonObject) -> InboundMessage | Amendment | Skip:
        """Interpret one decrypted event of a timeline, with everything that the homeserver knows of it."""
        begun = await self.begin(room_id, event)
        return await begun.finish() if isinstance(begun, Unfinished) else begun

    async def begin(
        self, room_id: str, event: JsonObject, *, seen_at: float | None = None
    ) -> InboundMessage | Amendment | Skip | Unfinished:
        """Interpret a decrypted event without requests; ``seen_at`` is its arrival if readable only now."""
        sender = text_of(event, "sender")
        is_member = event.get("type") == "m.room.member"
        if is_member and self.joinings.note_membership(room_id, event, self.clock.now()):
            self._talk.note_join(room_id, text_of(event, "state_key"))
        if any(fnmatchcase(sender, pattern) for pattern in self._config.ignore_senders):
            return Skip("ignored_sender")
        match event.get("type"):
            case "m.room.redaction":
                return self._taken_back(room_id, event)
            case "m.reaction":
                return await self._reaction(room_id, event)
            case kind if kind in ENDS:
                return self._ended_poll(room_id, event)
            case _:
                return await self._message(room_id, event, seen_at)

    def is_gone(self, room_id: str, event_id: Any, sender: Any) -> bool:
        """Return True if a person's event was redacted recently."""
        by = self._gone.get((room_id, str(event_id).removesuffix(BY_EDIT)))
        return by is not None and by in ("", sender)

    def note_answer(self, room_id: str, root: str | None) -> None:
        """Note that the bot has answered a message in the thread with this root."""
        if root is not None:
            self._ours[room_id, root] = None

    def forget_room(self, room_id: str) -> None:
        """Note that the bot has left this room."""
        self._talk.forget(room_id)
        self.joinings.forget(room_id)

    def note_join(self, room_id: str) -> None:
        """Note that the bot has joined this room, and has read nothing of it yet."""
        self.joinings.note_join(room_id, self.clock.now())

    def note_room_upgrade(self) -> None:
        """Rooms have replaced others."""
        self.joinings.note_replacement(self.clock.now())

    def note_missed_event(self, room_id: str) -> None:
        """Note that an event of a room will never be read."""
        self._talk.forget(room_id)
        self.joinings.note_missed_joins(room_id, self.clock.now())

    async def _message(
        self, room_id: str, event: JsonObject, seen_at: float | None
    ) -> InboundMessage | Amendment | Skip | Unfinished:
        sender = text_of(event, "sender")
        me = self.rules.me_in(room_id, self.me, sender)
        message = read_event(event, room_id, me=me, rooms=self.rooms, now=self.clock.now())
        if isinstance(message, Skip):
            if message.reason == "own":
                self._quotes.forget(room_id, edits(event))
            if message.reason != "edit":
                return message
            return await self._asked_by_edit(room_id, event, seen_at) or self._edited(room_id, event)
        self._senders.note(room_id, message.native_id, sender)
        message = message.model_copy(update={"text": self._newest(room_id, event) or message.text})
        room = self.rooms.get(room_id)
        moderates = message.audience is Audience.GROUP and room is not None and may_moderate(room, sender)
        seen = self._seen(message.context, room_id, sender, seen_at)
        here = self.rules.allows(room_id, sender)
        message = message.with_context(replace(seen, allowed_here=here, moderator=moderates))
        allowed = self.rules.is_context(room_id, sender)
        content = object_of(event, "content")
        place = (room_id, root_of(content) or "")
        answers_us: bool | None = False
        if allowed and not message.addressed:
            answers_us = await self._is_answer_to_us(message, me, place)
            message = message.model_copy(update={"addressed": answers_us is True})
        if not message.addressed:
            # Who has come since a message was seen, and has not seen it, is not known of one that was late.
            if seen_at is None and (allowed or self._config.group_context.senders == "everyone"):
                said = Background(kind="talk", sender=sender, name=message.sender.name, text=message.text)
                self._talk.remember(
                    place, message.native_id, said, message.context.read_route(MatrixRoute).media
                )
            if answers_us is None:
                return Unfinished(message, partial(self._if_it_answers_us, message, me, place))
            return message
        return self._with_background(message, place) if allowed else message

    async def _if_it_answers_us(
        self, message: InboundMessage, me: BotIdentity, place: tuple[str, str]
    ) -> InboundMessage | Skip:
        """A message that is meant for us if it stands in a thread of ours, or answers something of ours."""
        room_id, root = place
        ours = me.threads == "always" and bool(root) and await self._quotes.has_bot_written(room_id, root)
        answered = message.context.in_reply_to
        for event_id in (answered, root) if self._config.mention_by_reply else ():
            ours = ours or (bool(event_id) and await self._outbound(room_id, event_id) is not None)
        if not ours:
            return message
        self._talk.remove_redacted_line(place[0], message.native_id)  # it is a question, not talk
        begun = self._with_background(message.model_copy(update={"addressed": True}), place)
        return await begun.finish() if isinstance(begun, Unfinished) else begun

    def _seen(
        self, context: MessageContext, room_id: str, sender: str, seen_at: float | None
    ) -> MessageContext:
        """Add what a closed past needs: the message's time, and since when its sender sees."""
        at = self.joinings.stamp(room_id, self.clock.now(), late_since=seen_at)
        return replace(context, seen_at=at, visible_from=self.joinings.visible_from(room_id, sender))

    async def _with_quoted_file(self, message: InboundMessage, room_id: str) -> InboundMessage:
        """A question about somebody's picture brings the picture along, unless it has one of its own."""
        answered = message.context.in_reply_to
        if message.context.read_route(MatrixRoute).media is not None or not answered:
            return message
        return _with_file(message, await self._quotes.file(room_id, answered, _asker(message)))

    async def _is_answer_to_us(
        self, message: InboundMessage, me: BotIdentity, place: tuple[str, str]
    ) -> bool | None:
        """
        Return True if a message answers the bot, also in a thread; None: the homeserver must be asked.

        A reply to the bot's message counts, in a thread below it too, and so does a further message in a
        thread that the bot opened.
        """
        if me.group_policy != "mention":
            return False
        answered = message.context.in_reply_to
        points_to = [each for each in (answered, place[1]) if each and self._config.mention_by_reply]
        for each in points_to:
            if await self.inbox.delivered_id(each) is not None:
                return True
        in_a_thread = me.threads == "always" and bool(place[1])
        if in_a_thread and place in self._ours:
            return True
        # What the homeserver says can be late; it is for what was answered before the last start, and for
        # what may have been sent.
        in_doubt = bool(points_to) and bool(await self.inbox.unconfirmed_sends())
        return None if in_a_thread or in_doubt else False

    def _with_background(
        self, message: InboundMessage, place: tuple[str, str]
    ) -> InboundMessage | Unfinished:
        """Add what the model needs besides: the thread's beginning, earlier talk, the answered message."""
        room_id, root = place
        if (room_id, message.sender.address) in self._ending:
            return Unfinished(message, partial(self._after_poll, message, place))
        talk: tuple[Background, ...] = ()
        if message.audience is Audience.GROUP:
            # A question that opens a thread takes the talk of the room along and leaves it for the next.
            opens = not root and message.context.read_route(MatrixRoute).thread is not None
            if message.context.read_route(MatrixRoute).media is None and not message.context.in_reply_to:
                message = _with_file(message, self._talk.newest_file_for(place, message.sender.address))
            talk = self._talk.lines_for(place, message.sender.address, keep=opens)
        message = message.model_copy(update={"background": talk})
        # The history remembers it only for those who may see it, and where the past is closed for nobody.
        begins = bool(root) and (place not in self._begun or self.joinings.is_closed(room_id))
        if not begins and not message.context.in_reply_to:
            return message
        return Unfinished(message, partial(self._with_quotes, message, place, begins=begins))

    async def _after_poll(self, message: InboundMessage, place: tuple[str, str]) -> InboundMessage:
        """The question of who has ended a poll, whose result is known by now."""
        self._ending.pop((place[0], message.sender.address), None)
        begun = self._with_background(message, place)
        return await begun.finish() if isinstance(begun, Unfinished) else begun  # type: ignore[return-value]

    async def _with_quotes(
        self, message: InboundMessage, place: tuple[str, str], *, begins: bool
    ) -> InboundMessage:
        room_id, root = place
        found = message.background
        if begins and (beginning := await self._quotes.root(room_id, root, _asker(message))):
            self._begun[place] = None
            found = beginning + found
        answered = message.context.in_reply_to
        if answered:
            found += await self._quotes.chain(room_id, answered, _asker(message))
            if (ours := await self._outbound_answered(room_id, answered)) is not None:
                message = message.with_context(replace(message.context, outbound=ours))
        return (await self._with_quoted_file(message, room_id)).model_copy(update={"background": found})

    async def _outbound_answered(self, room_id: str, event_id: str) -> str | None:
        """The outbox id of what a message answers, if that is ours."""
        known = await self.inbox.delivered_id(event_id)
        if known is None and await self.inbox.unconfirmed_sends():
            return await self._outbound(room_id, event_id)
        return known

    def _newest(self, room_id: str, event: JsonObject) -> str | None:
        """Return the newest text of a message that was edited before it arrived, or None."""
        edit = bundled_edit(event)
        clear = self._decrypt(room_id, edit) if edit is not None else None
        text = edited_text(clear) if clear is not None else None
        return text or self._early.take(room_id, text_of(event, "event_id"), text_of(event, "sender"))

    async def _asked_by_edit(
        self, room_id: str, event: JsonObject, seen_at: float | None
    ) -> Unfinished | None:
        """Return the message that this edit makes one for the bot, or None. Its id tells what was edited."""
        sender, target = text_of(event, "sender"), edits(event)
        me = self._me_in(room_id, sender)
        content = object_of(object_of(event, "content"), "m.new_content")
        asks = me.group_policy == "mention" and mentions(content, me)
        if not asks or not self.rules.is_context(room_id, sender):
            return None
        if (place := self._talk.place_of(room_id, target, sender)) is not None:
            root = place[1]
        elif (heard := await self.inbox.ignored_session(target, sender)) is not None:
            root = (heard.thread or "").removeprefix(SHARED)
        else:
            return None
        self._talk.remove_redacted_line(room_id, target)
        self._early.take(room_id, target, sender)  # an older text
        relation = {"rel_type": "m.thread", "event_id": root} if root and root != target else {}
        said = {**event, "event_id": target, "content": {**content, "m.relates_to": relation}}
        me = self.rules.me_in(room_id, self.me, sender)
        alone = read_event(said, room_id, me=me, rooms=self.rooms, now=self.clock.now())
        if isinstance(alone, Skip):
            return None
        seen = self._seen(alone.context, room_id, sender, seen_at)
        alone = alone.with_context(replace(seen, allowed_here=self.rules.allows(room_id, sender)))
        return Unfinished(mark_as_edit(alone), partial(self._asked_in_place, room_id, said, seen_at))

    async def _asked_in_place(
        self, room_id: str, said: JsonObject, seen_at: float | None
    ) -> InboundMessage | Skip:
        """Return a question by an edit, with the thread and the reply that its first text was."""
        if (relation := await self._quotes.relation_of(room_id, text_of(said, "event_id"))) is not None:
            said = {**said, "content": {**object_of(said, "content"), "m.relates_to": relation}}
        asked = await self._message(room_id, said, seen_at)
        message = await asked.finish() if isinstance(asked, Unfinished) else asked
        return mark_as_edit(message) if isinstance(message, InboundMessage) else Skip("edit")

    def _edited(self, room_id: str, event: JsonObject) -> Amendment | Skip:
        edit = read_edit(event)
        if isinstance(edit, Amendment):
            if not self.rules.is_context(room_id, edit.sender):
                # Nothing of theirs waits; what they have said to others may be among what was heard.
                self._talk.change(room_id, edit.native_id, edit.sender, edit.text)
                return Skip("edit")
            self._quotes.forget(room_id, edit.native_id)
            self._talk.change(room_id, edit.native_id, edit.sender, edit.text)
            if not self._senders.sender_of(room_id, edit.native_id):
                self._early.keep(room_id, edit)
            content = object_of(object_of(event, "content"), "m.new_content")
            edit = edit.model_copy(update={"names_bot": mentions(content, self._me_in(room_id, edit.sender))})
        return edit

    def _me_in(self, room_id: str, sender: str) -> BotIdentity:
        """Return how the bot is called in a room, and what it does there for this sender."""
        me = self.rules.me_in(room_id, self.me, sender)
        return replace(me, name_here=self.rooms.name_in(room_id, self.me.user_id))

    def _taken_back(self, room_id: str, event: JsonObject) -> Amendment | Skip:
        room = self.rooms.get(room_id)
        target = redacts(event, room.version if room is not None else "")
        by = text_of(event, "sender")
        if not target or by == self.me.user_id or "state_key" in event:
            return Skip("no_message")
        author, may = self._senders.sender_of(room_id, target), room is not None and may_redact(room, by)
        if author not in ("", by) and not may:
            # Our own homeserver should not have let it through; others are less strict than Synapse.
            _log.warning("matrix.redaction_ignored", room=room_id, sender=by)
            return Skip("no_message")
        # Who does not moderate here takes back what is theirs; a message may come after its redaction.
        self._gone[room_id, target] = "" if may else by
        self._quotes.forget(room_id, target)
        self._talk.remove_redacted_line(room_id, target, "" if may else by)
        author = author or by
        if not self.rules.is_context(room_id, author):
            return Skip("no_message")
        return Amendment(kind="withdraw", native_id=target, sender=author)

    async def _reaction(self, room_id: str, event: JsonObject) -> InboundMessage | Skip | Unfinished:
        sender = text_of(event, "sender")
        if sender == self.me.user_id or not self.rules.is_context(room_id, sender):
            return Skip("no_message")
        target = reacts_to(event)
        if not target:
            return Skip("no_message")
        known = await self.inbox.delivered_id(target)
        if known is None and not await self.inbox.unconfirmed_sends():
            return Skip("no_message")
        reaction = read_reaction(
            event,
            room_id,
            outbound=known or "",
            me=self.me,
            rooms=self.rooms,
            now=self.clock.now(),
            allowed_here=self.rules.allows(room_id, sender),
        )
        if isinstance(reaction, Skip):
            return reaction
        reaction = reaction.with_context(self._seen(reaction.context, room_id, sender, None))
        if known is not None:
            return await self._join_conversation(reaction, known)
        return Unfinished(reaction, partial(self._place_reaction, reaction, room_id, target))

    def _ended_poll(self, room_id: str, event: JsonObject) -> Skip | Unfinished:
        sender, target = text_of(event, "sender"), poll_of(event)
        if not target or not self.rules.is_context(room_id, sender):
            return Skip("no_message")
        content = {"msgtype": "m.text", "body": "[A poll has ended]"}
        me = self.rules.me_in(room_id, self.me, sender)
        said = {**event, "type": "m.room.message", "content": content}
        message = read_event(said, room_id, me=me, rooms=self.rooms, now=self.clock.now())
        if isinstance(message, Skip):
            return message
        # It belongs to no question, so `!undo` passes it over.
        seen = self._seen(message.context, room_id, sender, None)
        here = self.rules.allows(room_id, sender)
        message = message.with_context(replace(seen, noted=LineNote(), allowed_here=here))
        ended_at = event.get("origin_server_ts")
        self._ending[room_id, sender] = None
        return Unfinished(message, partial(self._poll_result, message, room_id, target, ended_at))

    async def _poll_result(
        self, message: InboundMessage, room_id: str, target: str, ended_at: Any
    ) -> InboundMessage | Skip:
        """Return the result of a poll for the history if the bot is meant; else note it as talk of others."""
        found, sender = await self._quotes.poll(room_id, target), message.sender
        room = self.rooms.get(room_id)
        # Who has come between its start and its end is not told what it was about.
        hidden = message.audience is Audience.GROUP and self.joinings.is_closed(room_id)
        if found is None or hidden:
            return Skip("no_message")
        author, poll = found
        if sender.address != author and (room is None or not may_redact(room, sender.address)):
            return Skip("no_message")
        text = await self._quotes.result(room_id, target, poll, ended_at) or message.text
        if sender.address == author and message.addressed:
            return message.model_copy(update={"text": text})
        if self.rules.is_context(room_id, author):
            said = Background(kind="talk", sender=author, text=text)
            self._talk.remember((room_id, ""), message.native_id, said)
        return Skip("no_message")

    async def _place_reaction(
        self, reaction: InboundMessage, room_id: str, target: str
    ) -> InboundMessage | Skip:
        """A reaction to what we may have said, as far as we know."""
        outbound = await self._outbound(room_id, target)
        if outbound is None:
            return Skip("no_message")
        about = reaction.with_context(replace(reaction.context, outbound=outbound))
        return await self._join_conversation(about, outbound)

    async def _join_conversation(self, reaction: InboundMessage, outbound: str) -> InboundMessage:
        """The reaction in the conversation of what it is about, unless others read along only since then."""
        sent, session = await self.inbox.find_sent_message(outbound), reaction.session
        thread = session.thread if sent is None else sent.session.thread
        if is_shared(thread) is not is_shared(session.thread):
            return reaction
        return reaction.model_copy(
            update={"session": SessionKey(session.channel, session.conversation, thread)}
        )

    async def _outbound(self, room_id: str, event_id: str) -> str | None:
        """Return the outbox id of our event on the server; None also after `_MARK_LIMIT_S`."""
        mark, backoff = None, Backoff(BackoffPolicy(first_s=0.3, cap_s=2.0, jitter=0.4))
        with anyio.move_on_after(_MARK_LIMIT_S):
            while mark is None:
                try:
                    mark = await self._sent.find_own_transaction(room_id, event_id)
                except ChannelUnavailable as error:
                    _log.info("matrix.reaction_missed", room=room_id, error=str(error))
                    await anyio.sleep(
                        backoff.note_failure(random=random.random(), at_least_s=error.retry_after_s)
                    )
        unconfirmed = await self.inbox.unconfirmed_sends()
        # What was confirmed since is no longer among them.
        known = await self.inbox.delivered_id(event_id)
        return known or next((key for key in unconfirmed if mark and transaction_id(key) == mark), None)


def _with_file(message: InboundMessage, file: FileNote | None) -> InboundMessage:
    """The message with a file that stands in a quotation or in earlier talk, not in its text."""
    if file is None:
        return message
    route = replace(message.context.read_route(MatrixRoute), media=replace(file, remark=""))
    return message.with_context(message.context.with_route(route))


def _asker(message: InboundMessage) -> Asker:
    return Asker(message.sender.address, message.audience is Audience.DIRECT)
