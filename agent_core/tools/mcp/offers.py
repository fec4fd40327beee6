"""
The resources and prompts of a server, offered to a model as tools. A server that has resources gets
`list_resources` and `read_resource`, one that has prompts `get_prompt`. The descriptions name what the server
offers, so they are pinned as those of its tools are; which single resources there are may change all the
time, so that is a result. Only imported together with the SDK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from agent_core.models import tool_parameters
from agent_core.text import one_line
from agent_core.tools.mcp.definitions import Definition, Kind, definition_from, is_usable_name

_MOST = 200
_URI = tool_parameters("uri", uri="string")
_PROMPT = tool_parameters("name", name="string", arguments="object")
_NOT_SAID_BY_SERVERS = ("Server returned an error response", "Unexpected content type")
"""What the SDK makes of answers at an address that are no messages, such as HTTP 502."""
RESULTS: Mapping[Kind, TypeAdapter[Any]] = {
    "tool": TypeAdapter(types.CallToolResult | types.InputRequiredResult),
    "resources": TypeAdapter(types.ListResourcesResult),
    "resource": TypeAdapter(types.ReadResourceResult | types.InputRequiredResult),
    "prompt": TypeAdapter(types.GetPromptResult | types.InputRequiredResult),
}


def is_lost(error: MCPError) -> bool:
    """Return True if there was no answer; False for an error that the server reported."""
    if error.error.code in (types.CONNECTION_CLOSED, types.PARSE_ERROR, types.REQUEST_TIMEOUT):
        return True
    return str(error.message).startswith(_NOT_SAID_BY_SERVERS)


async def list_offers(session: ClientSession) -> list[Definition]:
    """Return resources and prompts as tools; invalid answers count as none. Raises MCPError."""
    can = session.server_capabilities
    found: list[Definition | None] = []
    if can is not None and can.resources is not None:
        resources = await _answered(all_pages(session.list_resources, lambda page: page.resources))
        listed = all_pages(session.list_resource_templates, lambda page: page.resource_templates)
        templates = await _answered(listed)
        if templates or resources:
            named = [_line(each.uri_template, each.name, each.description) for each in templates[:_MOST]]
            form = f" Forms of addresses: {'; '.join(named)}" if named else ""
            listing = definition_from(
                "list_resources", "Lists the resources of this server.", {"type": "object"}
            )
            reading = definition_from("read_resource", f"Reads one resource by its address.{form}", _URI)
            found += [_as(listing, "resources"), _as(reading, "resource")]
    if can is not None and can.prompts is not None:
        prompts = await _answered(all_pages(session.list_prompts, lambda page: page.prompts))
        if prompts:
            told = [_line(each.name, _arguments(each), each.description) for each in prompts[:_MOST]]
            text = f"Gives the text of a prompt that this server has prepared: {'; '.join(told)}"
            found.append(_as(definition_from("get_prompt", text, _PROMPT), "prompt"))
    return [each for each in found if each is not None]


async def all_pages(
    ask: Callable[..., Awaitable[Any]], entries: Callable[[Any], list[Any]], most: int = _MOST
) -> tuple[list[Any], bool]:
    """
    The entries of all pages of a list, until there are more than ``most``; whether pages are left.

    A server that has one page and no end of it says the same again.
    """
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(50):
        page = await ask(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        new = entries(page)
        if cursor and page.next_cursor == cursor and new == found[len(found) - len(new) :]:
            return found, False
        found += new
        cursor = page.next_cursor
        if not cursor or len(found) > most:
            break
    return found, bool(cursor)


async def _answered(asked: Awaitable[tuple[list[Any], bool]]) -> list[Any]:
    """The entries of an answer; none if it is an error, or cannot be read."""
    try:
        return (await asked)[0]
    except MCPError as error:
        if error.error.code == types.CONNECTION_CLOSED:
            raise
    except (ValidationError, ValueError, RuntimeError):
        pass
    return []


def request_for(kind: Kind, name: str, arguments: Mapping[str, Any], given: dict[str, Any]) -> Any:
    """The request of a call; ``given`` are answers to what the server has asked."""
    match kind:
        case "tool":
            params = types.CallToolRequestParams(name=name, arguments=dict(arguments), **given)
            return types.CallToolRequest(params=params)
        case "resource":
            uri = str(arguments.get("uri", ""))
            return types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri, **given))
        case "prompt":
            more = arguments.get("arguments")
            texts = {str(key): str(value) for key, value in more.items()} if isinstance(more, dict) else {}
            wanted = str(arguments.get("name", ""))
            return types.GetPromptRequest(
                params=types.GetPromptRequestParams(name=wanted, arguments=texts or None, **given)
            )


def text_of(resources: list[types.Resource], are_more: bool) -> str:  # noqa: FBT001
    """A list of resources, one a line."""
    lines = [_line(each.uri, each.name, each.description) for each in resources[:_MOST]]
    if len(resources) > _MOST or are_more:
        lines.append("There are more.")
    return "\n".join(lines)


def _as(definition: Definition | None, kind: Kind) -> Definition | None:
    return None if definition is None else replace(definition, kind=kind)


def _arguments(prompt: types.Prompt) -> str:
    names = ", ".join(f"{each.name}{'' if each.required else '?'}" for each in prompt.arguments or ())
    return f"({names})"


def _line(what: str, name: str | None, description: str | None) -> str:
    told = " ".join(part for part in (what, name if name != what else "") if part)
    return one_line(f"{told}: {description}" if description else told, 300)


_LISTS = {
    "tools": ("tool", "name"),
    "resources": ("resource", "uri"),
    "resourceTemplates": ("address template", "uriTemplate"),
    "prompts": ("prompt", "name"),
}


def fit_lists(result: dict[str, Any]) -> list[str]:
    """
    Make the lists in a server's answer fit the protocol, in place; return what was left out.

    An odd entry costs itself and no other. A structured result that is no object becomes one.
    """
    left_out: list[str] = []
    structured = result.get("structuredContent")
    if structured is not None:
        result.setdefault("content", [])
    if structured is not None and not isinstance(structured, dict):
        result["structuredContent"] = {"result": structured}
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
