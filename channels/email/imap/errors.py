"""
Translates the errors of an IMAP connection into errors of our own, in plain words, so that nothing of
aioimaplib gets out.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from channels.base import ChannelUnavailable
from channels.email.auth.tls import tls_error
from channels.email.config import ImapServer
from channels.email.imap.protocol import ImapRefused, LinkLost
from channels.email.imap.syntax import WireError


@contextmanager
def door(server: ImapServer, doing: str, abort: Callable[[], None]) -> Iterator[None]:
    """Translate exceptions; ``abort`` drops the connection, as after a timeout answers are out of step."""
    where = f"{server.host}:{server.port}"
    try:
        yield
    except ssl.SSLError as exc:
        abort()
        raise tls_error(exc, server.host, server.port) from exc
    except TimeoutError as exc:
        abort()
        raise ChannelUnavailable(f"the mail server {where} did not answer in time ({doing})") from exc
    except ImapRefused as exc:
        raise ChannelUnavailable(f"the mail server {where} refused {exc.command}: {exc.text}") from exc
    except WireError as exc:
        abort()
        raise ChannelUnavailable(f"the mail server {where} does not speak IMAP: {exc}") from exc
    except (LinkLost, OSError) as exc:
        cause = exc.__cause__
        if isinstance(cause, ImapRefused):
            raise ChannelUnavailable(f"the mail server {where} closes the session: {cause.text}") from exc
        raise ChannelUnavailable(f"no connection to the mail server {where} ({doing}): {exc}") from exc
