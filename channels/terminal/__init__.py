"""
The terminal channel: one person at this machine. The channel itself has no screen. Whoever shows one, in this
process or at the other end of a control socket, holds a `TerminalLink`: it says what the person typed and
iterates over events, which are plain data. ``terminal_link.py`` is that data, ``terminal_link.py`` the
person's side, ``channel.py`` the gateway's.
"""

from channels.terminal.channel import TerminalChannel
from channels.terminal.terminal_link import Answer, Preview, TerminalEvent, TerminalLink, Typing, parse_event

__all__ = ["Answer", "Preview", "TerminalChannel", "TerminalEvent", "TerminalLink", "Typing", "parse_event"]
