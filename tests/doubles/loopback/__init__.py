"""
A channel without a network, and the server behind it: shipped, so that everybody can test on it.

It behaves as real ones do: the server replays what was not acknowledged, takes an answer and loses the
line, refuses logins, is slow. ``server.py`` is the place where people talk, in memory; ``files.py`` keeps
it in a folder, so that a process on it can be killed while another one watches; ``channel.py`` is the
channel.
"""

from tests.doubles.loopback.channel import LoopbackChannel
from tests.doubles.loopback.files import FileLoopbackServer
from tests.doubles.loopback.server import Delivered, Link, LoopbackServer, Said

__all__ = ["Delivered", "FileLoopbackServer", "Link", "LoopbackChannel", "LoopbackServer", "Said"]
