"""What `!help` says: every command in a few words, in the order in which people need them. Pure."""

from __future__ import annotations

from gateway.turns.commands.command_parsing import nearest
from gateway.turns.commands.command_table import COMMANDS
from gateway.turns.questions.question_text import safe_line

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
    known = {name: each for name, each in COMMANDS.items() if owner or not each.for_owner}
    if wanted in COMMANDS:
        whose = "" if wanted in known else " Only my owner may do that."
        whose += f" In this room, write my name first: `{safe_line(name)}: !{wanted}`." if name else ""
        return f"`!{wanted}`: {COMMANDS[wanted].text}{whose}"
    if wanted:
        near = nearest(wanted)
        meant = f" Did you mean `!{near}`?" if near else ""
        return f"There is no `!{safe_line(wanted)[:40]}`.{meant} `!help` lists all commands."
    first = f", with my name first: `{safe_line(name)}: !remind tomorrow at 8 TEXT`" if name else ""
    lines = [f"These are the commands. Send each as a separate message{first}{'.' if name else ':'}"]
    for group in dict.fromkeys(each.group for each in known.values() if each.group):
        listed = [f"- `!{name}`: {each.summary}" for name, each in known.items() if each.group == group]
        lines += ["", f"{group}:", "", *listed]
    return "\n".join([*lines, "", _MORE if owner else f"{_MORE} {_SEEN}"])
