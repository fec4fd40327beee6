"""The name of a server's tool for a model: ``server__tool``, as every provider accepts it. Pure."""

from __future__ import annotations

import hashlib
import re

LONGEST = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_CHARS = 6


def model_name(server: str, tool: str) -> str:
    """
    The name of a tool for models.

    A name that had to be changed or cut ends with a hash of what the server calls it, so that two tools of
    one server never share a name, whatever else the server offers.
    """
    fit = _UNFIT.sub("_", tool)
    if fit == tool and tool and "__" not in tool and len(server) + 2 + len(tool) <= LONGEST:
        return f"{server}__{tool}"
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    room = LONGEST - len(server) - len("__") - len("-") - _HASH_CHARS
    return f"{server}__{fit[:room]}-{digest}"
