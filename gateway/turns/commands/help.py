"""What `!help` says: every command in a few words, in the order in which people need them. Pure."""

from __future__ import annotations

from gateway.turns.approvals.text import line
from gateway.turns.commands.parsing import nearest

__all__ = ["help_text"]

_HELP: dict[str, tuple[str, str]] = {
    "help": ("what you can tell me", "`!help`, or `!help new` about one of them."),
    "new": (
        "begin a new conversation",
        "What was said is set aside; I can still search it. Among others only moderators can do that.",
    ),
    "stop": (
        "leave off what I am doing here",
        "Whatever waits or is being worked on here is not answered: in a group, what you have asked.",
    ),
    "status": ("how I am", "Whether I am well, and what waits in this conversation."),
    "memory": ("what I remember of you", "The notes that I keep for this conversation, word for word."),
    "usage": ("what this costs", "Tokens, and money where it is known: today, and in the last 30 days."),
    "approve": ("let something through", "`!approve NAME`; without a name I say what waits."),
    "reject": ("do not let it through", "`!reject NAME`, and why, if you like."),
    "answer": (
        "answer what a server wants to know",
        "`!answer NAME VALUE`, with the name of the question; several values as `name: value; name: value`.",
    ),
    "grant": (
        "allow calls like one that I ask about, for a while",
        "`!grant NAME`, with `30m`, `1h` (at most a day) or `job`; my owner may add `everywhere`.",
    ),
    "grants": ("what is allowed in advance", "`!grants revoke ID` ends one."),
    "trust": (
        "what was said and read here is fine",
        "With a question's name: of what that names. `!trust file NAME`: what that file holds now.",
    ),
    "files": (
        "which files I have changed",
        "`!files undo NUMBER` takes a change back. `squidbot files` can do more.",
    ),
    "did": (
        "what I have done with tools",
        "The newest effects, with whose idea they were and how to undo them.",
    ),
    "jobs": (
        "what I am doing in the background for you",
        "`!jobs show ID` says what one has said so far, `!jobs stop ID` ends it.",
    ),
    "model": (
        "which models answer here",
        "`!model NAME` lets that pool answer in this conversation, `!model default` goes back.",
    ),
    "search": ("find what was said", "`!search WORDS`: the newest messages with all of these words."),
    "remind": (
        "remind you later",
        "`!remind in 2h TEXT`, `friday 9:00 TEXT`, `every day 09:00 TEXT` or `remove ID`; alone it lists.",
    ),
    "continue": (
        "go on here with another conversation of yours",
        "`!continue` lists them, of all channels; `!continue 2` takes the second over.",
    ),
    "retry": (
        "answer the last question anew",
        "The earlier answer is taken back. Only what you have asked yourself, and not while I work on it.",
    ),
    "undo": (
        "take the last question and its answer back",
        "I do not see them any more; what I did because of them stays. Once more takes back the one before.",
    ),
    "export": (
        "this conversation as a file",
        "As Markdown. Among others: what you and I have said to each other.",
    ),
}
_GROUPS = (
    ("In this conversation", ("new", "stop", "retry", "undo", "continue", "search", "export", "model")),
    ("What I do for you", ("remind", "jobs", "memory", "files", "did", "status", "usage")),
    ("When I ask", ("approve", "reject", "answer", "grant", "grants", "trust")),
)
_FOR_THE_OWNER = frozenset({"approve", "reject", "trust", "files", "model", "continue"})
_MORE = "`!help NAME` says more about one of them. `/` works in place of `!`."


def help_text(argument: str, *, owner: bool) -> str:
    """The commands (``owner``: also those for the owner alone), or any single one."""
    wanted = argument.lower().lstrip("!/").strip("`")
    known = [name for name in _HELP if owner or name not in _FOR_THE_OWNER]
    if wanted in _HELP:
        whose = "" if wanted in known else " My owner alone may do that."
        return f"`!{wanted}`: {_HELP[wanted][0]}. {_HELP[wanted][1]}{whose}"
    if wanted:
        near = nearest(wanted)
        meant = f" Did you mean `!{near}`?" if near else ""
        return f"There is no `!{line(wanted)[:40]}`.{meant} `!help` lists what there is."
    lines = ["This is what you can tell me, as a message of its own:"]
    for heading, names in _GROUPS:
        lines += [
            "",
            f"{heading}:",
            "",
            *(f"- `!{name}`: {_HELP[name][0]}" for name in names if name in known),
        ]
    return "\n".join([*lines, "", _MORE])
