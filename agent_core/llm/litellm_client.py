"""
The one door to litellm: it translates providers, and nothing else of it is used.

Retries, fallback, cool-down and time limits are ours (``pools``, ``streaming``), because its own are hidden,
partly ignored, and cannot be journaled. No module but this one may import it, and this one does so late: the
import takes two to five seconds and about a hundred MiB. It happens in a thread, once, and includes a first
streamed call with a tool against a responder of our own on loopback, because the first call imports as much
again and would stop the event loop for a second. After it everything that is alive is taken out of the
garbage collector's sight (`gc.freeze`): 300,000 objects make each full collection a stop of 100 to 400 ms.

Set before the import: ``LITELLM_LOCAL_MODEL_COST_MAP`` (else a thread fetches prices from the internet) and
``LITELLM_MODE=PRODUCTION`` (else it loads a ``.env`` file from the working directory into our environment).
Undone after it: its handlers on stderr, its banners, its telemetry.

Traps: 401 arrives as a "bad request" and a refused connection as a made-up status 500, so status and cause
chain decide (``classify``); the openai SDK below retries twice unless told not to, under two names; leaving
a stream with ``break`` keeps the connection open until ``aclose``; a stream that is cut politely looks to it
like one that ended; where a server tells no usage it counts tokens itself, which loads a table of 100 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent_core.errors import ModelError
from agent_core.llm.causes import failure_of
from agent_core.llm.classify import classify
from agent_core.llm.pictures import pictures_of
from agent_core.llm.prices import Price
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.llm.warm_up import warm_up_responder
from agent_core.llm.wire import Piece, Tokens, ToolFragment, request_body, token_count
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.ports import AttachmentPort, Clock

__all__ = ["LiteLLMClient", "close_clients", "ensure_loaded", "litellm_loaded"]

_WARM_UP_LIMIT_S = 20.0
_CLOSE_LIMIT_S = 5.0
_log = structlog.get_logger(__name__)
_lock = threading.Lock()
_loaded = threading.Event()


# ── loading ──


def litellm_loaded() -> bool:
    """Whether litellm is imported and warm."""
    return _loaded.is_set()


async def ensure_loaded() -> None:
    """
    Import litellm in a thread unless that has been done; returns when it is warm.

    May be called by many at once. If the caller is cancelled the import goes on for the next one.

    Raises:
        ImportError: It cannot be imported.
    """
    if not _loaded.is_set():
        await anyio.to_thread.run_sync(_load, abandon_on_cancel=True)


def _load() -> None:
    with _lock:
        if _loaded.is_set():
            return
        began = time.monotonic()
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        os.environ["LITELLM_MODE"] = "PRODUCTION"
        with _collector_paused(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _import_and_quieten()
            imported = time.monotonic()
            try:
                asyncio.run(_warm_up())
            except Exception as error:  # noqa: BLE001 - without it the first call is slow, and that is all
                _log.warning("litellm.warm_up_failed", error=f"{type(error).__name__}: {error}")
        gc.collect()
        gc.freeze()
        _loaded.set()
        _log.info(
            "litellm.loaded",
            import_s=round(imported - began, 2),
            warm_up_s=round(time.monotonic() - imported, 2),
        )


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Collecting while half a million objects are made only for good costs a seventh of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _import_and_quieten() -> None:
    import litellm  # noqa: PLC0415 - the late import that this module is about

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    litellm.drop_params = True  # a parameter that a provider does not know is no reason to fail
    litellm.modify_params = True  # Anthropic: a conversation with tool calls, asked without tools
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.setLevel(logging.WARNING)


async def _warm_up() -> None:
    """One streamed call with a tool, so that everything that is imported on first use is there."""
    import litellm  # noqa: PLC0415 - see above

    tool = ToolDefinition(name="t", description="d", parameters={"type": "object", "properties": {}})
    body = request_body(
        "openai/warm-up", [Message(role="user", content="x")], [tool], stream=True, max_tokens=1
    )
    try:
        with anyio.fail_after(_WARM_UP_LIMIT_S):
            async with warm_up_responder() as api_base:
                stream = await litellm.acompletion(
                    **body,
                    api_base=api_base,
                    api_key="none",
                    max_retries=0,
                    num_retries=0,
                    timeout=_WARM_UP_LIMIT_S,
                )
                try:
                    async for _ in stream:
                        pass
                finally:
                    await stream.aclose()
    finally:
        await _close()


async def close_clients() -> None:
    """
    Close litellm's cached connections and stop its background task, before the event loop ends.

    Does nothing if litellm was never needed. Never fails: at that point nobody could do anything about it.
    """
    if _loaded.is_set():
        await _close()


async def _close() -> None:
    import litellm  # noqa: PLC0415 - see above
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER  # noqa: PLC0415

    with anyio.move_on_after(_CLOSE_LIMIT_S):
        try:
            await GLOBAL_LOGGING_WORKER.stop()
            await litellm.close_litellm_async_clients()
            litellm.in_memory_llm_clients_cache.flush_cache()
        except Exception as error:  # noqa: BLE001 - see the docstring
            _log.warning("litellm.close_failed", error=f"{type(error).__name__}: {error}")


# ── asking ──


class LiteLLMClient:
    """
    An `LLMPort` for one model of any provider that litellm knows.

    Args:
        model: litellm's name of it, such as ``anthropic/claude-…`` or ``openai/…``.
        clock: For dates in Retry-After.
        api_base: Where the provider is, if not at its usual address.
        api_key: The key, if the provider wants one.
        max_tokens: Limit of one answer, if any.
        extra: Further parameters, such as ``temperature``.
        limits: How long an answer may take.
        price: What tokens cost, where litellm's own table is wrong or silent.
        pictures: Where pictures are read, for a model that looks at them.
    """

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        api_base: str = "",
        api_key: str = "",
        max_tokens: int | None = None,
        extra: Mapping[str, Any] | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - a frozen value
        price: Price | None = None,
        pictures: AttachmentPort | None = None,
    ) -> None:
        self.model = model
        self._clock = clock
        self._api_base = api_base
        self._key = api_key
        self._max_tokens = max_tokens
        self._extra = dict(extra or {})
        self._limits = limits
        self._price = price
        self._pictures = pictures

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer; see `LLMPort`. The first call of all loads litellm, outside of the limits."""
        await ensure_loaded()
        request = request_body(
            self.model,
            messages,
            tools,
            stream=stream,
            max_tokens=self._max_tokens,
            extra=self._extra,
            pictures=await pictures_of(messages, self._pictures),
        )
        request |= {"max_retries": 0, "num_retries": 0, "timeout": self._limits.total_s}
        if self._api_base:
            request["api_base"] = self._api_base
        if self._key or self._api_base:
            request["api_key"] = self._key or "none"  # the SDK wants one even where the server does not
        return answer(
            self._pieces(request, stream=stream), limits=self._limits, model=self.model, stream=stream
        )

    async def _pieces(self, request: Mapping[str, Any], *, stream: bool) -> AsyncGenerator[Piece, None]:
        """What litellm gives, in our form; every exception is one of ours."""
        import litellm  # noqa: PLC0415 - see the module

        response: Any = None
        try:
            response = await litellm.acompletion(**request)
            if not stream:
                yield self._piece(response, response.choices[0].message if response.choices else None)
                return
            async for chunk in response:
                yield self._piece(chunk, chunk.choices[0].delta if chunk.choices else None)
        except ModelError:
            raise
        except Exception as error:
            raise self._translated(error) from error
        finally:
            if stream and response is not None:
                await response.aclose()

    def _piece(self, chunk: Any, body: Any) -> Piece:
        usage = getattr(chunk, "usage", None)
        tokens = None
        cost = None
        if usage is not None:
            tokens = Tokens(token_count(usage.prompt_tokens), token_count(usage.completion_tokens))
            cost = self._cost_or_none(tokens, usage)
        fragments = tuple(
            ToolFragment(
                index=getattr(call, "index", None),
                id=call.id or "",
                name=call.function.name or "",
                arguments=call.function.arguments or "",
            )
            for call in (getattr(body, "tool_calls", None) or ())
        )
        return Piece(
            text=getattr(body, "content", None) or "",
            fragments=fragments,
            tokens=tokens,
            finish=chunk.choices[0].finish_reason if chunk.choices else None,
            cost_usd=cost,
        )

    def _cost_or_none(self, tokens: Tokens, usage: Any) -> float | None:
        """The operator's price, else litellm's; unknown for a model on a server of one's own."""
        if self._price is not None:
            return self._price.of(tokens)
        if self._api_base and self.model.startswith("openai/"):
            return None
        import litellm  # noqa: PLC0415 - see the module

        try:
            paid = litellm.ModelResponse(model=self.model, usage=usage)
            return float(litellm.completion_cost(completion_response=paid, model=self.model))
        except Exception:  # noqa: BLE001 - it raises all kinds for a model that it does not know
            return None

    def _translated(self, error: Exception) -> ModelError:
        failure = failure_of(error, secret=self._key)
        return classify(failure, model=self.model, now=self._clock.now())
