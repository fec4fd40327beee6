"""
Commands: what a person can tell the bot itself, in a conversation, without a model.

``command_parsing.py`` decides, purely, whether a message is a command; ``chat_commands.py`` does what it
says. A command is an ordinary row of the inbox. It has a turn of its own, at once and beside a turn that is
running, and is answered exactly once: its effects can all be done twice, and what is said comes from the
state that they leave. It leaves no line in the history (but what ``!continue`` takes over), and no model ever
sees it.

Which words are commands
    ``!word``, ``! word`` or ``/word``, in any case, at the very beginning of a message: in a direct
    conversation, and in a group of a message that is meant for the bot (its name in front of it is passed
    over). In an email the first line that is not blank, if there is nothing else in it.
What is none
    A word that no command has ("!important") is text. One that only a slip of the finger keeps from being a
    command ("!hlep", alone in its message; "!serach trains") is answered with one line, since a model could
    only guess. A known word followed by more than it takes ("!new idea: …") is not done either, and said so.
    What is quoted is never looked at.
``!new``
    overtakes like any command what waits for a model or runs in one; what was asked before it is answered as
    part of the old conversation all the same (``new_conversation.py``).
``!stop``
    is not only a row: ``routing/intake.py`` recognises it and withdraws what was said before it (others than
    the owner only their own) as it is accepted (``store/sql/amendments.py``); the signal ``stopped`` lets
    ``turns/handler.py`` cancel the running turn; its own turn answers with the number.
"""

from gateway.turns.commands.command_parsing import Command, Misread, parse_command
from gateway.turns.commands.command_table import COMMANDS

__all__ = ["COMMANDS", "Command", "Misread", "parse_command"]
