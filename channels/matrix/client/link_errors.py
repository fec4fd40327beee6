"""Whatever a request raises, as `LinkBroken`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from channels.matrix.client.api import LinkBroken

__all__ = ["TooMuch", "link_errors"]


class TooMuch(Exception):
    """An answer is larger than any that makes sense."""


@contextmanager
def link_errors() -> Iterator[None]:
    """What goes wrong inside while a server is talked to comes out as `LinkBroken`."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise LinkBroken(
            f"the server's certificate is not trusted: {error.certificate_error}",
            maybe_taken=False,
            certificate=True,
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise LinkBroken(f"cannot connect: {error.os_error}", maybe_taken=False) from error
    except TimeoutError as error:
        raise LinkBroken("the server did not answer in time", maybe_taken=True) from error
    except TooMuch as error:
        raise LinkBroken("the answer is too large to be read", maybe_taken=True) from error
    except aiohttp.ClientResponseError as error:
        raise LinkBroken(
            "what answers there is no HTTP server; is the port right?", maybe_taken=True
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise LinkBroken(f"the connection broke: {type(error).__name__}", maybe_taken=True) from error
    except RuntimeError as error:
        # What aiohttp raises when `aclose` has overtaken a request.
        if "closed" not in str(error).lower():
            raise
        raise LinkBroken("the connection was closed", maybe_taken=True) from error
