"""The name of a server's tool for a model: ``server__tool``, as every provider accepts it. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

LONGEST = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_CHARS = 6


def model_name(server: str, tool: str) -> str:
    """
    The name of a tool for models.

    A name that had to be changed or cut ends with a hash of what the server calls it, so that two tools of
    one server share a name only if the server has looked for that; see `tools_by_name`.
    """
    fit = _UNFIT.sub("_", tool)
    if fit == tool and tool and "__" not in tool and len(server) + 2 + len(tool) <= LONGEST:
        return f"{server}__{tool}"
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    room = LONGEST - len(server) - len("__") - len("-") - _HASH_CHARS
    return f"{server}__{fit[:room]}-{digest}"


def tools_by_name(server: str, tools: Iterable[str]) -> Mapping[str, str]:
    """The tool for each name: of two with the same one, the first, so that none takes another's place."""
    found: dict[str, str] = {}
    for tool in sorted(tools):
        found.setdefault(model_name(server, tool), tool)
    return found
