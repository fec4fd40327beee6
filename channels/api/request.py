"""Reads the bodies of OpenAI's requests: which words they have, and what of them is not possible. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.messages import Background

_MAX_NAME = 128
_CHARS_PER_TOKEN = 4
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXTS = ("text", "input_text", "output_text", "refusal")
_NOT_DONE = ("previous_response_id", "conversation", "background", "audio", "logprobs", "prompt")


class BadRequest(Exception):
    """A request cannot be answered; the text says why, and ``param`` names what is wrong."""

    def __init__(
        self, text: str, param: str | None = None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(text)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True, slots=True)
class RequestWords:
    """
    The words of a request: its last message of a user, and what the client sent before it.

    ``tokens`` estimates those of all its messages; ``shows_usage``: the client wants them at a stream's end.
    """

    text: str
    images: tuple[tuple[str, bytes], ...]
    earlier: tuple[Background, ...]
    conversation: str
    stream: bool
    digest: str
    tokens: int = 0
    shows_usage: bool = False


def estimate_tokens(text: str) -> int:
    """About as many as models count."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def read_body(
    body: bytes, *, key: str, model: str, person: str, ours: str, conversation: str = ""
) -> RequestWords:
    """
    Read a request whose messages stand under ``key`` (``messages`` or ``input``).

    ``person`` is the address of the token's person, ``ours`` the name of the assistant; ``conversation``
    counts where the body names none. Raises BadRequest.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("The body is not valid JSON.") from None
    if not isinstance(data, dict):
        raise BadRequest("The body must be a JSON object.")
    _check(data, model)
    conversation = _conversation(data.get("metadata")) or _storable(conversation.strip()[:_MAX_NAME])
    given = data.get(key)
    if isinstance(given, str) and key == "input":
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise BadRequest(f"'{key}' must be a list with at least one message.", key)
    said = [_message(each, f"{key}[{number}]") for number, each in enumerate(given)]
    if isinstance(rules := data.get("instructions"), str) and rules.strip():
        said.insert(0, ("system", rules, ()))
    role, text, images = said[-1]
    if role != "user":
        raise BadRequest("The last message must be one of the user's.", key)
    if not text.strip() and not images:
        raise BadRequest("The last message is empty.", key)
    # In a conversation that squidbot keeps, its own history counts.
    earlier = () if conversation else _earlier(said[:-1], person, ours)
    digest = hashlib.sha256(conversation.encode())
    for each_role, each_text, each_images in said:
        parts = (each_role.encode(), each_text.encode(), *(content for _, content in each_images))
        digest.update(b"".join(hashlib.sha256(part).digest() for part in parts))
    options = data.get("stream_options")
    return RequestWords(
        text,
        images,
        earlier,
        conversation,
        data.get("stream") is True,
        digest.hexdigest()[:16],
        tokens=sum(estimate_tokens(each) for _, each, _ in said),
        shows_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def _check(data: Mapping[str, Any], model: str) -> None:
    if not isinstance(data.get("model"), str):
        raise BadRequest("You must provide a model parameter.", "model")
    if data["model"] != model:
        text = f"The model '{data['model'][:100]}' does not exist; here it is called '{model}'."
        raise BadRequest(text, "model", status=404, code="model_not_found")
    if data.get("n") not in (None, 1):
        raise BadRequest("Only one answer can be had: n must be 1.", "n", code="unsupported_value")
    for name in _NOT_DONE:
        if data.get(name):
            raise BadRequest(f"'{name}' is not supported here.", name, code="unsupported_parameter")
    for name in ("tool_choice", "function_call"):
        if data.get(name) not in (None, "auto", "none"):
            text = f"'{name}': squidbot uses its own tools, so a call of yours cannot be required."
            raise BadRequest(text, name, code="unsupported_value")
    output = data.get("text")
    for form in (data.get("response_format"), output.get("format") if isinstance(output, Mapping) else None):
        if isinstance(form, Mapping) and form.get("type") != "text":
            raise BadRequest("Only the response format 'text' is supported.", "response_format")


def _conversation(metadata: object) -> str:
    name = metadata.get("conversation", "") if isinstance(metadata, Mapping) else ""
    if not isinstance(name, str) or len(name) > _MAX_NAME:
        raise BadRequest(f"'metadata.conversation' must be a text of at most {_MAX_NAME} characters.")
    return _storable(name.strip())


def _message(each: object, where: str) -> tuple[str, str, tuple[tuple[str, bytes], ...]]:
    """Read one message: its role, its text and its images."""
    if isinstance(each, Mapping) and each.get("type") not in (None, "message"):
        # Of the Responses API: calls and their results, which are background here.
        return "tool", _storable(str(each.get("output") or "")), ()
    if not isinstance(each, Mapping) or each.get("role") not in _ROLES:
        raise BadRequest(f"'{where}.role' must be one of: {', '.join(_ROLES)}.", f"{where}.role")
    content = each.get("content")
    if content is None or isinstance(content, str):
        return str(each["role"]), _storable(content or ""), ()
    if not isinstance(content, list):
        raise BadRequest(f"'{where}.content' must be a text or a list of parts.", f"{where}.content")
    texts, images = [], []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        at = f"{where}.content[{number}]"
        if kind in _TEXTS and isinstance(text := part.get("text", part.get("refusal")), str):
            texts.append(_storable(text))
        elif kind in ("image_url", "input_image"):
            images.append(_image(part.get("image_url"), at))
        else:
            raise BadRequest(f"'{at}': parts of the type {str(kind)[:50]!r} are not supported.", at)
    return str(each["role"]), "\n".join(texts), tuple(images)


def _image(given: object, at: str) -> tuple[str, bytes]:
    url = given.get("url") if isinstance(given, Mapping) else given
    head, comma, content = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise BadRequest(f"'{at}': an image must be a data: URL with base64; links are not fetched.", at)
    try:
        return head[5:].partition(";")[0], base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"'{at}': the image is not valid base64.", at) from None


def _earlier(
    said: Sequence[tuple[str, str, tuple[tuple[str, bytes], ...]]], person: str, ours: str
) -> tuple[Background, ...]:
    """
    Return what came before as words that the client sent: its user's and its instructions as the person's,
    the answers as what squidbot may have said, and results of its tools as a stranger's.
    """
    whose = {"assistant": ours, "tool": "tool", "function": "tool"}
    names = {"system": "instructions", "developer": "instructions"}
    found, room = list[Background](), 100_000
    for role, text, images in reversed(said):
        text = "\n".join(filter(None, (text, "[an image]" if images else "")))  # noqa: PLW2901
        room -= len(text)
        if room < 0:
            found.append(Background(kind="thread", sender="tool", text="[What came before is left out.]"))
            break
        if text.strip():
            sender, name = whose.get(role, person), names.get(role, "")
            found.append(Background(kind="thread", sender=sender, name=name, text=text))
    return tuple(reversed(found))


def _storable(text: str) -> str:
    """Return the text without halves of surrogate pairs, which JSON can have and no file takes."""
    return text.encode("utf-8", "replace").decode()
