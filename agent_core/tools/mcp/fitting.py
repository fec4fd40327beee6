"""
Makes fit what servers send nearly as the protocol wants it. Pure. One odd entry of a list costs itself and no
other: what can be completed is, and what cannot is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.tools.mcp.definitions import is_usable_name

_LISTS = {
    "tools": ("tool", "name"),
    "resources": ("resource", "uri"),
    "resourceTemplates": ("address template", "uriTemplate"),
    "prompts": ("prompt", "name"),
}


def fit_lists(result: dict[str, Any]) -> list[str]:
    """Make the lists in a server's answer fit, in place; what was left out, for the owner."""
    left_out: list[str] = []
    for key, (what, name) in _LISTS.items():
        entries = result.get(key)
        if not isinstance(entries, list) or "content" in result:
            continue
        result[key] = fit = []
        for number, entry in enumerate(entries, start=1):
            if isinstance(entry, dict) and is_usable_name(entry.get(name)):
                fit.append(_fit_entry(key, name, entry))
            else:
                left_out.append(f"{what} {number} of the list: it has no usable {name}")
    return left_out


def _fit_entry(key: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    fit = {name: entry[name]}
    if isinstance(entry.get("description"), str):
        fit["description"] = entry["description"]
    if key == "tools":
        schema = entry.get("inputSchema")
        fit["inputSchema"] = {**(schema if isinstance(schema, dict) else {}), "type": "object"}
    elif key == "prompts":
        arguments = entry.get("arguments")
        fit["arguments"] = [
            {"name": each["name"], "required": each.get("required") is True}
            for each in (arguments if isinstance(arguments, list) else ())
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        ]
    else:
        fit["name"] = entry["name"] if isinstance(entry.get("name"), str) else entry[name]
    return fit
