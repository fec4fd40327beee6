"""What `!help` says: every command in a few words, in the order in which people need them. Pure."""

from __future__ import annotations

from agent_core.language import _, gettext_noop
from gateway.turns.commands.command_parsing import nearest
from gateway.turns.commands.command_table import COMMANDS
from gateway.turns.questions.question_text import safe_line

_SEEN = gettext_noop(
    "My owner sees that you use me, which tools I use for you and when, but what you say only if you ask for "
    "something that needs the owner's yes."
)
_MORE = gettext_noop("`!help NAME` explains one of them. `/` works in place of `!`.")


def help_text(argument: str, *, owner: bool, name: str = "") -> str:
    """
    The commands (``owner``: also those for the owner alone), or any single one.

    ``name`` is that of the bot, in a room where commands need it in front.
    """
    wanted = argument.lower().lstrip("!/").strip("`")
    known = {name: each for name, each in COMMANDS.items() if owner or not each.for_owner}
    if wanted in COMMANDS:
        whose = "" if wanted in known else _(" Only my owner may do that.")
        whose += (
            _(
                " In this room, write my name first: `{name}: !{wanted}`.",
                name=safe_line(name),
                wanted=wanted,
            )
            if name
            else ""
        )
        return f"`!{wanted}`: {_(COMMANDS[wanted].text)}{whose}"
    if wanted:
        near = nearest(wanted)
        meant = _(" Did you mean `!{near}`?", near=near) if near else ""
        return _(
            "There is no `!{wanted}`.{meant} `!help` lists all commands.",
            wanted=safe_line(wanted)[:40],
            meant=meant,
        )
    lines = [_("These are the commands. Send each as a separate message:")]
    if name:
        lines = [
            _(
                "These are the commands. Send each as a separate message, with my name first: "
                "`{name}: !remind tomorrow at 8 TEXT`.",
                name=safe_line(name),
            )
        ]
    for group in dict.fromkeys(each.group for each in known.values() if each.group):
        listed = [f"- `!{name}`: {each.summary}" for name, each in known.items() if each.group == group]
        lines += ["", f"{_(group)}:", "", *listed]
    return "\n".join([*lines, "", _(_MORE) if owner else f"{_(_MORE)} {_(_SEEN)}"])
