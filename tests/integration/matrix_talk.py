"""What people and the bot do in a room: questions, edits, threads, replies, and answers that are streamed."""

from __future__ import annotations

import secrets

import anyio

from channels.base import AckState
from tests.integration.matrix_bot import call, joined_room


def edit_of(event_id, text, **content):
    return {
        "msgtype": "m.text",
        "body": f"* {text}",
        "m.new_content": {"msgtype": "m.text", "body": text},
        "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
        **content,
    }


def in_thread(root, **content):
    return {"m.relates_to": {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}, **content}


def answering(event_id, **content):
    return {"m.relates_to": {"m.in_reply_to": {"event_id": event_id}}, **content}


def mentioning(bot):
    return {"m.mentions": {"user_ids": [bot.user_id]}}


async def redact(peer, room, event_id):
    path = f"/rooms/{room}/redact/{event_id}/{secrets.token_hex(6)}"
    return (await call(peer.call, "PUT", path, {}))["event_id"]


async def group(alice, bob, bot):
    """A room of three."""
    room = await joined_room(alice, bot, direct=False)
    await call(alice.invite, room, bob.user_id)
    await call(bob.join, room)
    return room


async def asked(bot, peer, room, text, **content):
    """What the channel makes of a message that is meant for the bot."""
    event_id = await call(peer.send, room, text, **content)
    await bot.inbox.until(lambda inbox: any(one.native_id == event_id for one in inbox.accepted))
    return next(one for one in bot.inbox.accepted if one.native_id == event_id)


def lines(message):
    return [(one.kind, one.sender, one.text) for one in message.background]


STREAMING = {"enabled": True, "min_interval_s": 0.2}


async def by_bot(peer, room, bot):
    return [event for event in await call(peer.history, room, limit=500) if event.sender == bot.user_id]


async def stream(channel, question, words, *, every_s=0.06):
    """What a turn does while the model speaks."""
    await channel.acknowledge(question.session, question.context, AckState.RECEIVED)
    text = ""
    for word in words:
        text += f"{word} "
        await channel.preview(question.session, text.strip())
        await anyio.sleep(every_s)
    return text.strip()


def answer_to(bot, question, text, **fields):
    fields = {"id": f"answer-{question.native_id}", **fields}
    return bot.message(
        question.session.conversation, text, session=question.session, context=question.context, **fields
    )


def shown(events):
    """What a person sees: the newest text of each event, in order."""
    newest = {}
    for event in events:
        newest[event.replaces or event.event_id] = event.body
    return list(newest.values())
