"""The commands of conversations: what may follow each, whose it is, and what `!help` says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent_core.language import _, gettext_noop


class Takes(StrEnum):
    """The words that may follow a command."""

    NOTHING = gettext_noop("nothing")
    WORD = gettext_noop("one word")
    """Or nothing."""
    ANYTHING = gettext_noop("anything")


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command; ``group`` is its heading in `!help`, and the first sentence of ``text`` its line there."""

    takes: Takes
    group: str
    text: str
    for_owner: bool = False

    @property
    def summary(self) -> str:
        """The command in a few words."""
        return _(self.text).partition(". ")[0]


_HERE, _DONE, _ASKED = (
    gettext_noop("In this conversation"),
    gettext_noop("What I do for you"),
    gettext_noop("When I ask"),
)
_NOTHING, _WORD, _ANYTHING = Takes
COMMANDS: dict[str, ChatCommand] = {
    "help": ChatCommand(
        _WORD, "", gettext_noop("list the commands. `!help`, or `!help new` about one of them.")
    ),
    "new": ChatCommand(
        _NOTHING,
        _HERE,
        gettext_noop(
            "start a new conversation. I set aside what was said; I can still search it. In a group, only "
            "moderators can do that."
        ),
    ),
    "stop": ChatCommand(
        _ANYTHING,  # who is in a hurry may be polite or not
        _HERE,
        gettext_noop(
            "stop what I am doing here. I do not answer what waits or is in progress here. In a group, that "
            "is what you have asked."
        ),
    ),
    "retry": ChatCommand(
        _NOTHING,
        _HERE,
        gettext_noop(
            "answer the last question again. This withdraws the earlier answer. Only for your own question, "
            "and not while I work on it."
        ),
    ),
    "undo": ChatCommand(
        _NOTHING,
        _HERE,
        gettext_noop(
            "remove the last question and its answer. I no longer see them; what I did because of them "
            "stays. Repeat it for the question before."
        ),
    ),
    "continue": ChatCommand(
        _WORD,
        _HERE,
        gettext_noop(
            "continue another conversation of yours here. `!continue` lists them, on all channels; "
            "`!continue 2` takes over the second one."
        ),
        for_owner=True,
    ),
    "search": ChatCommand(
        _ANYTHING,
        _HERE,
        gettext_noop("find what was said. `!search WORDS`: the newest messages with all of these words."),
    ),
    "export": ChatCommand(
        _WORD,
        _HERE,
        gettext_noop(
            "send this conversation as a file. As Markdown. In a group: what you and I have said to each "
            "other. In private, `!export me` sends all that I have stored about you."
        ),
    ),
    "model": ChatCommand(
        _WORD,
        _HERE,
        gettext_noop(
            "show or choose the models that answer here. `!model NAME` selects the pool that answers in this "
            "conversation, `!model default` switches back."
        ),
        for_owner=True,
    ),
    "remind": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "remind you later. `!remind tomorrow at 8 TEXT`, `in 2h TEXT`, `every day 09:00 TEXT`; `!remind` "
            "lists, `!remind change 2 tomorrow 9:00` moves one, and `!remind cancel 2` (or its words) "
            "removes it. In a room `!remind us 18:30 TEXT` and `!remind NAME 18:30 TEXT` notify others."
        ),
    ),
    "watch": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "say what is new on a page. `!watch ADDRESS`, or `!watch ADDRESS every 2h`: a feed, a page or "
            "JSON; `!watch file PATH` and `!watch mail FOLDER`: a file, a mailbox folder. `!watch` lists, "
            "`!watch remove ID` ends it."
        ),
        for_owner=True,
    ),
    "jobs": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "list your background jobs. `!jobs show ID` shows what a job has said so far, `!jobs stop ID` "
            "stops it."
        ),
    ),
    "memory": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "show what I remember about you. My notes for this conversation, word for word. `!memory undo` "
            "takes back their last change, `!memory undo 3` brings their version 3 back."
        ),
    ),
    "forget": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "erase all that I have stored about you. `!forget me` asks for a confirmation and does it in the "
            "coming night; `!forget cancel` takes that back."
        ),
    ),
    "persona": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "show or set my name and manner. `!persona You are Ada, warm and brief.` sets it, for everybody; "
            "`!persona remove` takes it away."
        ),
        for_owner=True,
    ),
    "files": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop("list the files that I have changed. `!files undo NUMBER` undoes a change."),
        for_owner=True,
    ),
    "did": ChatCommand(
        _NOTHING,
        _DONE,
        gettext_noop(
            "list what I have done with tools. The newest effects, who wanted them, and how to undo them."
        ),
    ),
    "status": ChatCommand(
        _NOTHING,
        _DONE,
        gettext_noop("show whether I work. My state, my channels, and what waits in this conversation."),
    ),
    "console": ChatCommand(
        _NOTHING,
        _DONE,
        gettext_noop(
            "send a link to my console. The link counts once, for two minutes. There you see what waits for "
            "you, and decide."
        ),
        for_owner=True,
    ),
    "link": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "tell me that another address is yours, too. `!link ADDRESS` gives you a code to send from "
            "there; I then have one memory for both. In a private conversation only."
        ),
    ),
    "unlink": ChatCommand(
        _ANYTHING,
        _DONE,
        gettext_noop(
            "end a link of your addresses. `!unlink ADDRESS`; without an address, that of the one at which "
            "you write."
        ),
    ),
    "usage": ChatCommand(
        _NOTHING,
        _DONE,
        gettext_noop(
            "show what this costs. Tokens, and money where it is known: today, and in the last 30 days."
        ),
    ),
    "approve": ChatCommand(
        _WORD,
        _ASKED,
        gettext_noop("approve something. `!approve NAME`; without a name I say what waits."),
        for_owner=True,
    ),
    "reject": ChatCommand(
        _ANYTHING,
        _ASKED,
        gettext_noop("reject something. `!reject NAME`, and why, if you like."),
        for_owner=True,
    ),
    "allow": ChatCommand(
        _ANYTHING,
        _ASKED,
        gettext_noop(
            "let somebody write to me. `!allow ADDRESS`, and I answer what I kept of them; `!allow remove "
            "ADDRESS` ends it. Without an address: whom I refused."
        ),
        for_owner=True,
    ),
    "answer": ChatCommand(
        _ANYTHING,
        _ASKED,
        gettext_noop(
            "answer a question of a server. `!answer NAME VALUE`, with the name of the question; several "
            "values as `name: value; name: value`."
        ),
    ),
    "grant": ChatCommand(
        _ANYTHING,
        _ASKED,
        gettext_noop(
            "approve similar calls in advance, for a limited time. `!grant NAME`, with `30m`, `1h` (at most "
            "a day) or `job`; my owner may add `everywhere`."
        ),
    ),
    "grants": ChatCommand(
        _ANYTHING, _ASKED, gettext_noop("list the grants in effect. `!grants revoke ID` ends one.")
    ),
    "trust": ChatCommand(
        _ANYTHING,
        _ASKED,
        gettext_noop(
            "count what was said and read here as your own words. With the name of a question: only what it "
            "names. `!trust file NAME`: the present content of that file."
        ),
        for_owner=True,
    ),
}
LISTS = frozenset(
    ["remind", "watch", "jobs", "memory", "files", "approve", "allow", "grants", "model", "continue"]
)
"""Commands that show what there is when they stand alone; a ``list`` behind them means the same."""
SYNONYMS: dict[str, tuple[str, ...]] = {
    "start": ("help",),
    "commands": ("help",),
    "delete": ("undo", "memory", "remind"),
    "list": ("remind", "jobs", "memory"),
    "reset": ("new",),
    "clear": ("new",),
    "cancel": ("stop", "remind"),
    "cost": ("usage",),
    "costs": ("usage",),
    "budget": ("usage",),
    "tasks": ("jobs", "remind"),
}
"""Commands of other bots: what shows the help there does so here, and the others name what does it here."""
