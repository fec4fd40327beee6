"""
Translates a failure at a model into one of our errors. Pure; imports no library. The HTTP status decides
first, then the body, and only then the exception: litellm reports a refused connection as status 500 and a
wrong key as "bad request", so the whole chain of causes is searched. The text is for the operator's log and
never holds the key; ``public`` is what a stranger may read.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime

from agent_core.errors import (
    ContextTooLong,
    CreditSpent,
    Failure,
    ModelAuthFailed,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    ModelUnreadable,
)
from agent_core.language import _, gettext_noop
from agent_core.text import one_line

EMPTY_ANSWER = gettext_noop("The language model gave an empty answer.")

_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum (context|prompt)|too many (input )?tokens"
    r"|(prompt|input|request|message)s? (is |are )?too (long|large)|(prompt|input) exceeds"
    r"|exceed(s|ed)? (the |your )?(model'?s? )?(maximum|context|token limit|input)"
    r"|reduce the length|string_above_max_length",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:context (?:size|length|window)(?: of| is)?|n_ctx\W{1,6}) ?\(?(\d{3,8})|window of (\d{3,8})",
    re.IGNORECASE,
)
_CONTEXT_EXCEEDED = re.compile(
    r"context[ _-]?(size|length|window)[\w ]{0,20}exceed|exceed[\w ]{0,30}context", re.IGNORECASE
)
"""In a status of the server's own failure: llama.cpp says so with 500."""
_ADDRESS = re.compile(r"https?://\S+")
_LATER = re.compile(
    r"(?:try again|retry)\D{0,20}?(\d{1,6}(?:\.\d+)?) ?(m?s)\b"
    r"|[\"']?retry_?(?:after|delay)[\"']?\s*[:=]\s*[\"']?(\d{1,6}(?:\.\d+)?)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"(invalid|incorrect|missing|no|bad|wrong|expired)[ _]api[ _-]?key"
    r"|api[ _-]?key (is |has )?(not valid|invalid|expired)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model[ _]not[ _](exist|found)|\bmodel\b[^.\n]{0,80} does not exist|model_decommissioned"
    r"|(invalid[ _]|unknown |not a valid )model\b(?! (output|param|field|option))|模型不存在",
    re.IGNORECASE,
)
"""Said with status 400 by Mistral, Groq, DeepSeek, OpenRouter, Z.AI, LM Studio and others."""
_UNPARSED = re.compile(r"(error|failed to) pars(e|ing) (tool call|input)|tool_use_failed", re.IGNORECASE)
"""A server that cannot read its own model's answer says so as if the request were wrong."""
_AWAY = re.compile(r"channel error|model (is |was )?unloaded|model has crashed", re.IGNORECASE)
"""LM Studio gives status 400 to what happens to itself."""
_NO_SUCH_ENDPOINT = re.compile(r"endpoints found that support", re.IGNORECASE)
"""OpenRouter: the model is there, and nobody who serves it takes what was sent, such as tools."""
_FILTERED = re.compile(r"content[ _-]?(policy|filter|management)|safety|moderation", re.IGNORECASE)
_CREDIT = re.compile(
    r"insufficient[ _](quota|balance|credits?|funds)|credit balance|(all available|run out of) credits"
    r"|specified API usage limits|spending limit|arrearage|check your plan and billing"
    r"|exceeded[ _](your[ _])?current[ _]quota|balance is insufficient",
    re.IGNORECASE,
)

_OPERATOR = {
    401: gettext_noop("The language model does not accept my credentials; my operator must check them."),
    403: gettext_noop("The language model refuses my login; my operator must check my account there."),
    404: gettext_noop(
        "The configured language model does not exist; my operator must check the configuration."
    ),
}
_REFUSES = {403: gettext_noop("refuses my account"), 404: gettext_noop("does not exist at its provider")}


def classify(failure: Failure, *, model: str, now: datetime) -> ModelError:
    """The error for a failure. ``fields["operator"]`` is true where only the operator can help."""
    detail = _detail(failure)
    # What an address of the documentation is called says nothing about this failure.
    told = _ADDRESS.sub("", f"{failure.code} {failure.text}")
    status = failure.status
    unparsed = "malformed" if status in (400, 500) and _UNPARSED.search(told) else ""
    if failure.unreadable or unparsed or (status is not None and 300 <= status < 400):
        kind_of_rubbish = failure.unreadable or unparsed or "redirect"
        return ModelUnreadable(
            f"{model}: {kind_of_rubbish} answer: {detail}", kind=kind_of_rubbish, model=model, status=status
        )
    if failure.transport:
        return ModelUnavailable(f"{model}: the model's server cannot be reached ({detail})", model=model)
    return _refused(failure, told, detail, model=model, now=now)


def _refused(failure: Failure, told: str, detail: str, *, model: str, now: datetime) -> ModelError:
    """The error for an answer that says no in the words of the protocol."""
    status = failure.status
    if _is_credit_spent(failure, told, now):
        return CreditSpent(f"{model}: {status}: {detail}", model=model, status=status, operator=True)
    said_so = _TOO_LONG.search(told) if status in (None, 400, 422) else _CONTEXT_EXCEEDED.search(told)
    if status == 413 or (said_so and status != 429):  # 413 says it without words
        found = _WINDOW.search(failure.text)
        window = int(found[1] or found[2]) if found else None
        return ContextTooLong(f"{model}: {detail}", model=model, status=status, window=window)
    if _only_operator_can_help(status, told):
        is_unknown = status == 404 or (status == 400 and not _BAD_KEY.search(told))
        kind = ModelRefused if is_unknown else ModelAuthFailed
        public = _OPERATOR.get(404 if is_unknown else status or 0)
        return kind(f"{model}: {status}: {detail}", public=public, model=model, status=status, operator=True)
    is_passing = status in (408, 409, 425, 429, 499) or _AWAY.search(told)
    if status is not None and 400 <= status < 500 and not is_passing:
        return ModelRefused(f"{model}: {status}: {detail}", model=model, status=status)
    wait = _wait_s(failure, now)
    if status == 429 or wait is not None:
        text = f"{model}: {status}: {detail}"
        busy = gettext_noop("The language model is not available at the moment; I will try again.")
        public = None if status == 429 else busy
        return ModelRateLimited(text, retry_after_s=wait, public=public, model=model, status=status)
    return ModelUnavailable(f"{model}: {status or 'failed'}: {detail}", model=model, status=status)


def _only_operator_can_help(status: int | None, told: str) -> bool:
    match status:
        case 401:
            return True
        case 404:
            return not _NO_SUCH_ENDPOINT.search(told)
        case 400:
            return bool(_BAD_KEY.search(told) or _NO_MODEL.search(told))
        case 403:  # also the status of some content filters
            return not _FILTERED.search(told)
    return False


def _is_credit_spent(failure: Failure, told: str, now: datetime) -> bool:
    """Return True if the account has no credit left; a 429 with its end is a rate limit instead."""
    match failure.status:
        case 402:
            return True
        case None | 400 | 403 | 412 | 500:
            return bool(_CREDIT.search(told))
        case 429:
            return bool(_CREDIT.search(told)) and ("insufficient" in told or _wait_s(failure, now) is None)
    return False


def for_operator(error: Exception) -> str:
    """Describe a refusal that only the operator can resolve; empty for any other error."""
    if (
        not isinstance(error, ModelError)
        or not error.fields.get("operator")
        or isinstance(error, CreditSpent)
    ):
        return ""
    return _(
        "{what}. Please mend that at the machine, test it with `squidbot check` and restart me; then ask me "
        "again.",
        what=refusal_text(error),
    )


def refusal_text(error: ModelError) -> str:
    """Say which model refuses what, without an end of the sentence."""
    model, status = error.fields.get("model"), error.fields.get("status")
    kind = 404 if isinstance(error, ModelRefused) else status or 0
    what = _REFUSES.get(kind, gettext_noop("does not accept my key"))
    told = f" ({status})" if status else ""
    return _("The model {model} {problem}{status}", model=model, problem=_(what), status=told)


def _detail(failure: Failure) -> str:
    text = " ".join(failure.text.split())
    if failure.secret and len(failure.secret) >= 4:
        text = text.replace(failure.secret, "***")
    return one_line(text, 300)


def _wait_s(failure: Failure, now: datetime) -> float | None:
    """The longest wait that the headers or the text ask for; None if they ask for none."""
    waits = [retry_after_s(failure.headers, now)]
    if found := _LATER.search(failure.text):
        waits.append(_clamped(float(found[1] or found[3]) / (1000 if found[2] == "ms" else 1)))
    return max((wait for wait in waits if wait is not None), default=None)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds of ``retry-after-ms`` or ``retry-after``, between 0 and 3600; None if unreadable."""
    plain = {name.lower(): value.strip() for name, value in headers.items()}
    wait = _number_or_none(plain.get("retry-after-ms", ""))
    if wait is not None:
        return _clamped(wait / 1000)
    text = plain.get("retry-after", "")
    wait = _number_or_none(text)
    if wait is not None:
        return _clamped(wait)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return _clamped((at - now).total_seconds()) if at.tzinfo is not None else None


def _number_or_none(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) else None


def _clamped(seconds: float) -> float:
    return min(max(seconds, 0.0), 3600.0)


def empty_answer(model: str, finish: str | None) -> ModelRefused:
    """
    The error for an answer with neither text nor tool call.

    ``fields["empty"]`` is true where asking again can help: it is not for a filter that struck, nor for a
    model that spent all its tokens on thinking.
    """
    if finish == "content_filter":
        return ModelRefused(
            f"{model}: the provider's content filter withheld the answer",
            public="The language model's provider withheld the answer to this.",
            model=model,
            finish=finish,
        )
    if finish == "cut call":
        return ModelRefused(
            f"{model}: max_tokens cut a tool call off; raise max_tokens",
            public="The language model's output limit (max_tokens) cut off what it wanted to do, so nothing "
            "was done. Ask for it in smaller parts, or have max_tokens raised.",
            model=model,
            finish=finish,
            empty=True,
        )
    if finish in ("length", "max_tokens", "model_length", "max_output_tokens"):
        return ModelRefused(
            f"{model}: all of max_tokens was spent before any text came; raise max_tokens",
            public="The language model used up its output limit on thinking and gave no answer.",
            model=model,
            finish=finish,
        )
    return ModelRefused(
        f"{model}: an answer with neither text nor tool call",
        public=EMPTY_ANSWER,
        model=model,
        finish=finish,
        empty=True,
    )


def endless_answer(model: str, limit: str) -> ModelRefused:
    """The error for an answer that was stopped because it did not end."""
    return ModelRefused(
        f"{model}: the answer did not end within {limit}",
        public="The language model did not finish, so I stopped it.",
        model=model,
    )


def repeating_answer(model: str) -> ModelRefused:
    """The error for an answer that says the same thing again and again."""
    return ModelRefused(
        f"{model}: the answer repeated itself without end",
        public="The language model said the same thing over and over, so I stopped it. Ask in other words.",
        model=model,
    )


_TRANSPORT_NAMES = {
    *("APIConnectionError", "ClientConnectionError", "ClientConnectorError", "ClientOSError"),
    *("ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout", "RemoteProtocolError"),
    *("ServerDisconnectedError",),
}


_REASONS = {
    **dict.fromkeys(("ClientConnectorDNSError", "gaierror"), "its name is not known, or cannot be looked up"),
    **dict.fromkeys(
        ("ClientConnectorCertificateError", "SSLCertVerificationError"), "its certificate is not trusted"
    ),
    **dict.fromkeys(("ClientConnectorSSLError", "SSLError"), "it does not speak https there"),
    **dict.fromkeys(
        ("ConnectionTimeoutError", "SocketTimeoutError", "ServerTimeoutError", "TimeoutError"),
        "it did not answer in time",
    ),
    **dict.fromkeys(("ConnectTimeout", "ReadTimeout"), "it did not answer in time"),
    **dict.fromkeys(("ServerDisconnectedError", "RemoteProtocolError"), "it broke off the connection"),
}


def transport_text(error: BaseException) -> str:
    """Return why a connection failed, in words; the library's text if that is not known."""
    chain = _chain(error)
    for link in chain:
        if said := _REASONS.get(type(link).__name__):
            return said
    codes = (link.errno for link in chain if isinstance(link, OSError) and link.errno in errno.errorcode)
    code = next(codes, None)
    return str(error) or type(error).__name__ if code is None else os.strerror(code).lower()


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
    transport = _is_transport(chain)
    return Failure(
        status=_status_or_none(chain),
        text=transport_text(error) if transport else str(getattr(error, "message", "") or error),
        code=" ".join(dict.fromkeys(_code(link) for link in chain if _code(link))),
        headers=_headers(chain),
        transport=transport,
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
