"""
Certificates: always verified, and explained in plain words when they do not fit.

There is no switch to turn verification off. An authority of one's own goes into ``tls_ca_file`` and is believed
besides the system's.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from channels.base import ChannelMisconfigured

__all__ = ["certificate_refused", "verifying_context"]

_EXPIRED = 10
_NOT_YET_VALID = 9
_NAME_MISMATCH = (62, 64)


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    """
    What connections are made with. Reads files, so call it in a thread.

    Raises:
        ChannelMisconfigured: The file with the own authority cannot be used.
    """
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


def certificate_refused(exc: ssl.SSLError, host: str, port: int) -> ChannelMisconfigured:
    """The error to raise when a TLS connection could not be made."""
    where = f"{host}:{port}"
    if not isinstance(exc, ssl.SSLCertVerificationError):
        return ChannelMisconfigured(
            f"no TLS connection to {where}: {exc}; is this the right port for this kind of security?"
        )
    if exc.verify_code == _EXPIRED:
        why = "it has expired; the server needs a new one"
    elif exc.verify_code == _NOT_YET_VALID:
        why = "it is not valid yet; is the clock of this machine right?"
    elif exc.verify_code in _NAME_MISMATCH:
        why = f"it is for another name; use the name that the certificate is for as host instead of {host}"
    else:
        why = (
            f"nobody that this machine trusts has signed it ({exc.verify_message}); if it is your own authority, "
            "name its certificate in tls_ca_file"
        )
    return ChannelMisconfigured(f"the certificate of {where} is refused: {why}. Nothing was sent.")
