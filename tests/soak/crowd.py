"""
People who talk to the bot for as long as the soak lasts, and count what comes back.

Every saying has a number of its own, the echo model repeats it, and so each answer names its question: after
the end every number must have been seen exactly once.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field

from devservers import MailPeer, MatrixPeer, text_of
from tests.integration.secret_peer import SecretPeer

_NUMBER = re.compile(r"#(\d+)")
_WORDS = [f"word{number}" for number in range(2000)]
_THREADS = 12


@dataclass
class Crowd:
    """
    Everybody who talks.

    Args:
        bot: The bot's user id on Matrix; ``mail_bot`` its address.
        rooms: Room ids and who talks there in clear; ``secret`` and ``secret_room`` do so encrypted.
        chance: Who says what next.
    """

    bot: str
    mail_bot: str
    rooms: dict[str, MatrixPeer]
    secret: SecretPeer
    secret_room: str
    mail: list[MailPeer]
    chance: random.Random
    said: int = 0
    by_way: Counter[str] = field(default_factory=Counter)
    _seen: Counter[int] = field(default_factory=Counter)
    _seen_secret: Counter[int] = field(default_factory=Counter)
    _threads: list[tuple[MailPeer, str, str]] = field(default_factory=list)

    def say(self, way: str = "") -> None:
        """Somebody says the next thing: mostly in rooms, at times encrypted (``secret``), at times by ``mail``."""
        self.said += 1
        way = way or self.chance.choices(["room", "secret", "mail"], [10, 2, 3])[0]
        self.by_way[way] += 1
        words = " ".join(self.chance.choices(_WORDS, k=self.chance.randint(3, 60)))
        text = f"#{self.said} {words}"
        if way == "room":
            room, peer = self.chance.choice(list(self.rooms.items()))
            peer.send(room, text)
        elif way == "secret":
            self.secret.send(self.secret_room, text, to=self.bot)
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        """A new thread now and then, otherwise a reply in one of the newest."""
        if not self._threads or self.chance.random() < 0.2:
            author = self.chance.choice(self.mail)
            first = author.send(self.mail_bot, f"thread {self.said}", text)
            self._threads.append((author, first, first))
            del self._threads[:-_THREADS]
            return
        place = self.chance.randrange(len(self._threads))
        author, first, last = self._threads[place]
        sent = author.send(self.mail_bot, "Re: on", text, in_reply_to=last, references=f"{first} {last}")
        self._threads[place] = (author, first, sent)

    def listen(self) -> None:
        """Read what came in rooms since the last time."""
        for peer in set(self.rooms.values()):
            peer.sync(0)
            for event in peer.pending:
                if event.sender == self.bot and event.type == "m.room.message":
                    self._seen.update(_numbers(event.body))
            peer.pending.clear()
        window: Counter[int] = Counter()
        for _, content in self.secret.read(self.secret_room):
            window.update(_numbers(str(content.get("body", ""))))
        for number, times in window.items():
            # The window is the newest 200; an answer that came twice stands in it twice.
            self._seen_secret[number] = max(self._seen_secret[number], times)

    def answers(self) -> Counter[int]:
        """How often each number was answered so far, on all ways."""
        self.listen()
        by_mail: Counter[int] = Counter()
        for author in self.mail:
            for mail in author.list():
                by_mail.update(_numbers(text_of(mail)))
        return self._seen + self._seen_secret + by_mail


def _numbers(text: str) -> list[int]:
    """The number that an echo begins with; nothing for what is no echo."""
    found = _NUMBER.search(text)
    return [int(found[1])] if found and text.startswith("echo:") else []
