"""A throwaway certificate authority and one server certificate, by trustme.

Run once per mail server: `... devservers.mailhost.certificates FOLDER`. Files: `ca.pem` for the clients,
`server.pem` (chain) and `server.key` for the servers. Both names of loopback are in the certificate.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = ("localhost", "127.0.0.1")


def main(folder: Path) -> None:
    """Write the three files."""
    trustme = importlib.import_module("trustme")
    authority = trustme.CA()
    leaf = authority.issue_cert(*NAMES)
    key = folder / "server.key"
    key.touch(mode=0o600)
    leaf.private_key_pem.write_to_path(str(key))
    for path in (folder / "server.pem", folder / "ca.pem"):
        path.unlink(missing_ok=True)
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(str(folder / "server.pem"), append=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
