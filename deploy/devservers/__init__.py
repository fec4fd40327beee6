"""Real servers on loopback, for `squidbot demo` and for the tests.

`Synapse` is a Matrix homeserver, `MailServer` an IMAP and submission server, `MatrixPeer` and `MailPeer`
the people who use them. What the servers are made of is installed on first use into a private cache
(`environment.py`), never next to squidbot itself. Every server dies with the process that started it,
however that ends (`keeper.py`).
"""

from __future__ import annotations

from devservers.errors import DevServerError, RequestFailed, StartFailed, ToolsMissing, WaitedInVain
from devservers.images import ImageServer
from devservers.mail import MailServer
from devservers.mailhost.faults import Attempt, Fault
from devservers.peers import MailPeer, MatrixPeer, RoomEvent, text_of
from devservers.provider import Trouble
from devservers.speech import SpeechServer
from devservers.synapse import Credentials, Synapse

__all__ = [
    "Attempt",
    "Credentials",
    "DevServerError",
    "Fault",
    "ImageServer",
    "MailPeer",
    "MailServer",
    "MatrixPeer",
    "RequestFailed",
    "RoomEvent",
    "SpeechServer",
    "StartFailed",
    "Synapse",
    "ToolsMissing",
    "Trouble",
    "WaitedInVain",
    "text_of",
]
