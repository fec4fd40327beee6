"""The people on the other side: small blocking clients for tests and demo.

They use the standard library on purpose. A peer built on the same libraries as the gateway would share
their mistakes, and the two would understand each other where others do not.
"""

from __future__ import annotations

from devservers.mail_peer import MailPeer, text_of
from devservers.matrix_peer import MatrixPeer, RoomEvent

__all__ = ["MailPeer", "MatrixPeer", "RoomEvent", "text_of"]
