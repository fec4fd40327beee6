"""What `!help` says: every command in a few words, in the order in which people need them. Pure."""

from __future__ import annotations

from gateway.turns.approvals.text import safe_line
from gateway.turns.commands.parsing import nearest

_HELP: dict[str, tuple[str, str]] = {
    "help": ("list the commands", "`!help`, or `!help new` about one of them."),
    "new": (
        "start a new conversation",
        "I set aside what was said; I can still search it. In a group, only moderators can do that.",
    ),
    "stop": (
        "stop what I am doing here",
        "I do not answer what waits or is in progress here. In a group, that is what you have asked.",
    ),
    "status": ("show whether I work", "My state, my channels, and what waits in this conversation."),
    "console": (
        "send a link to my console",
        "The link counts once, for two minutes. There you see what waits for you, and decide.",
    ),
    "memory": (
        "show what I remember about you",
        (
            "My notes for this conversation, word for word. `!memory undo` takes back their last change, "
            "`!memory undo 3` brings their version 3 back."
        ),
    ),
    "persona": (
        "show or set my name and manner",
        "`!persona You are Ada, warm and brief.` sets it, for everybody; `!persona remove` takes it away.",
    ),
    "usage": ("show what this costs", "Tokens, and money where it is known: today, and in the last 30 days."),
    "approve": ("approve something", "`!approve NAME`; without a name I say what waits."),
    "allow": (
        "let somebody write to me",
        (
            "`!allow ADDRESS`, and I answer what I kept of them; `!allow remove ADDRESS` ends it. Without an "
            "address: whom I refused."
        ),
    ),
    "reject": ("reject something", "`!reject NAME`, and why, if you like."),
    "answer": (
        "answer a question of a server",
        "`!answer NAME VALUE`, with the name of the question; several values as `name: value; name: value`.",
    ),
    "grant": (
        "approve similar calls in advance, for a limited time",
        "`!grant NAME`, with `30m`, `1h` (at most a day) or `job`; my owner may add `everywhere`.",
    ),
    "grants": ("list the grants in effect", "`!grants revoke ID` ends one."),
    "trust": (
        "count what was said and read here as your own words",
        (
            "With the name of a question: only what it names. `!trust file NAME`: the present content of "
            "that file."
        ),
    ),
    "files": (
        "list the files that I have changed",
        "`!files undo NUMBER` undoes a change.",
    ),
    "did": (
        "list what I have done with tools",
        "The newest effects, who wanted them, and how to undo them.",
    ),
    "jobs": (
        "list your background jobs",
        "`!jobs show ID` shows what a job has said so far, `!jobs stop ID` stops it.",
    ),
    "model": (
        "show or choose the models that answer here",
        "`!model NAME` selects the pool that answers in this conversation, `!model default` switches back.",
    ),
    "search": ("find what was said", "`!search WORDS`: the newest messages with all of these words."),
    "remind": (
        "remind you later",
        (
            "`!remind tomorrow at 8 TEXT`, `in 2h TEXT`, `every day 09:00 TEXT`; `!remind` lists, and "
            "`!remind cancel 2` (or its words) removes one. In a room `!remind us 18:30 TEXT` and `!remind "
            "NAME 18:30 TEXT` notify others."
        ),
    ),
    "continue": (
        "continue another conversation of yours here",
        "`!continue` lists them, on all channels; `!continue 2` takes over the second one.",
    ),
    "retry": (
        "answer the last question again",
        "This withdraws the earlier answer. Only for your own question, and not while I work on it.",
    ),
    "undo": (
        "remove the last question and its answer",
        "I no longer see them; what I did because of them stays. Repeat it for the question before.",
    ),
    "export": (
        "send this conversation as a file",
        "As Markdown. In a group: what you and I have said to each other.",
    ),
}
_GROUPS = (
    ("In this conversation", ("new", "stop", "retry", "undo", "continue", "search", "export", "model")),
    (
        "What I do for you",
        ("remind", "jobs", "memory", "persona", "files", "did", "status", "console", "usage"),
    ),
    ("When I ask", ("approve", "reject", "allow", "answer", "grant", "grants", "trust")),
)
_FOR_THE_OWNER = frozenset(
    {"console", "persona", "allow", "approve", "reject", "trust", "files", "model", "continue"}
)
_SEEN = (
    "My owner sees that you use me, which tools I use for you and when, but what you say only if you ask for "
    "something that needs the owner's yes."
)
_MORE = "`!help NAME` explains one of them. `/` works in place of `!`."


def help_text(argument: str, *, owner: bool, name: str = "") -> str:
    """
    The commands (``owner``: also those for the owner alone), or any single one.

    ``name`` is that of the bot, in a room where commands need it in front.
    """
    wanted = argument.lower().lstrip("!/").strip("`")
    known = [name for name in _HELP if owner or name not in _FOR_THE_OWNER]
    if wanted in _HELP:
        whose = "" if wanted in known else " Only my owner may do that."
        whose += f" In this room, write my name first: `{safe_line(name)}: !{wanted}`." if name else ""
        return f"`!{wanted}`: {_HELP[wanted][0]}. {_HELP[wanted][1]}{whose}"
    if wanted:
        near = nearest(wanted)
        meant = f" Did you mean `!{near}`?" if near else ""
        return f"There is no `!{safe_line(wanted)[:40]}`.{meant} `!help` lists all commands."
    first = f", with my name first: `{safe_line(name)}: !remind tomorrow at 8 TEXT`" if name else ""
    lines = [f"These are the commands. Send each as a separate message{first}{'.' if name else ':'}"]
    for heading, names in _GROUPS:
        lines += [
            "",
            f"{heading}:",
            "",
            *(f"- `!{name}`: {_HELP[name][0]}" for name in names if name in known),
        ]
    return "\n".join([*lines, "", _MORE if owner else f"{_MORE} {_SEEN}"])
