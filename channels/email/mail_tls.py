"""
TLS certificates of mail servers: always verified; a rejected one is explained in plain words.

There is no switch to turn verification off. ``tls_ca_file`` names an authority of one's own, which is
trusted in addition to the system's.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from channels.base import ChannelError, ChannelMisconfigured, ChannelUnavailable

_EXPIRED = 10
_NOT_YET_VALID = 9
_NAME_MISMATCH = (62, 64)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL")


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    """Build the TLS context of all connections; blocks. Raises ChannelMisconfigured for a bad CA file."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise ChannelMisconfigured(
                f"tls_ca_file {ca_file} cannot be used: {exc}; it must be a readable file of PEM certificates"
            ) from exc
    return context


def tls_error(exc: ssl.SSLError, host: str, port: int) -> ChannelError:
    """The error for a TLS connection that could not be made. In no case was anything sent in plaintext."""
    where = f"{host}:{port}"
    if not isinstance(exc, ssl.SSLCertVerificationError):
        if exc.reason in _NOT_TLS:
            return ChannelMisconfigured(
                f"{where} does not speak TLS on this port; check that port and security match"
            )
        return ChannelUnavailable(f"no TLS connection to {where}: {exc.reason or exc}")
    if exc.verify_code == _EXPIRED:
        why = "it has expired; the server needs a new one"
    elif exc.verify_code == _NOT_YET_VALID:
        why = "it is not valid yet; is the clock of this machine right?"
    elif exc.verify_code in _NAME_MISMATCH:
        why = f"it is not valid for {host}; set host to a name that it is valid for"
    else:
        why = (
            f"no authority that this machine trusts has signed it ({exc.verify_message}); if you run your "
            "own authority, name its certificate in tls_ca_file"
        )
    return ChannelMisconfigured(f"the certificate of {where} is refused: {why}. Nothing was sent.")
