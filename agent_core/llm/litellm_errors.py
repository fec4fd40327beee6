"""
Interprets the exceptions of litellm and of the libraries below it. Pure; imports none of them.

The class of the exception cannot be trusted (a wrong key is a "bad request", a refused connection a
"server error" with a status that nobody sent), so the whole chain of causes is searched: for the first
status, the first Retry-After, and any error of the connection itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_core.errors import Failure

_TRANSPORT_NAMES = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "ClientConnectorError",
        "ClientOSError",
        "ConnectError",
        "ConnectTimeout",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "ServerDisconnectedError",
    }
)


_UNREADABLE = {
    **dict.fromkeys(
        ("JSONDecodeError", "UnicodeDecodeError", "RecursionError", "DecodingError"), "malformed"
    ),
    **dict.fromkeys(("APIResponseValidationError", "ContentEncodingError"), "malformed"),
    "MemoryError": "large",
}
_UNREADABLE_TEXT = re.compile(
    r"Expecting (value|property name|',' delimiter|':' delimiter): line|Unterminated string starting at"
    r"|maximum recursion depth|'choices' that is not a list|Empty or invalid response from LLM endpoint"
)
"""litellm keeps the text of an error and not always the error."""


def failure_of(error: BaseException, *, secret: str = "") -> Failure:
    """Build a failure from an exception and its causes."""
    chain = _chain(error)
    return Failure(
        status=_status_or_none(chain),
        text=str(getattr(error, "message", "") or error),
        code=" ".join(dict.fromkeys(_code(link) for link in chain if _code(link))),
        headers=_headers(chain),
        transport=_is_transport(chain),
        secret=secret,
        unreadable=_unreadable(chain),
    )


def _unreadable(chain: Sequence[BaseException]) -> str:
    """The kind of rubbish that the server sent, if it did."""
    for link in chain:
        if kind := _UNREADABLE.get(type(link).__name__):
            return kind
    return "malformed" if any(_UNREADABLE_TEXT.search(str(link)[:2000]) for link in chain) else ""


def _chain(error: BaseException) -> list[BaseException]:
    """The error and everything it came from, nearest first."""
    chain: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue and len(chain) < 20:
        link = queue.pop(0)
        if link is None or any(link is seen for seen in chain):
            continue
        chain.append(link)
        queue += [getattr(link, "original_exception", None), link.__cause__, link.__context__]
    return chain


def _status_or_none(chain: Sequence[BaseException]) -> int | None:
    for link in chain:
        status = getattr(link, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _code(link: BaseException) -> str:
    name = type(link).__name__
    known = {
        "ContextWindowExceededError": "context_length_exceeded",
        "ContentPolicyViolationError": "content_policy",
    }
    code = getattr(link, "code", None)
    return known.get(name) or (code if isinstance(code, str) else "")


def _headers(chain: Sequence[BaseException]) -> dict[str, str]:
    """The headers of the first answer that says when to come again; else of none."""
    for link in chain:
        for source in (getattr(link, "response", None), link):
            for attribute in ("headers", "litellm_response_headers"):
                headers = getattr(source, attribute, None)
                try:
                    plain = {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
                except (TypeError, ValueError):
                    continue
                if "retry-after" in plain or "retry-after-ms" in plain:
                    return plain
    return {}


def _is_transport(chain: Sequence[BaseException]) -> bool:
    """Return True if an error of the connection itself is among the causes."""
    return any(
        isinstance(link, OSError | TimeoutError) or type(link).__name__ in _TRANSPORT_NAMES for link in chain
    )
