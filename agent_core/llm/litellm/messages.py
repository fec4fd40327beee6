"""
Pieces of answers and failures as they pass between the daemon and the process that litellm lives in. Pure.

What comes back is believed as little as any server: every field is checked for its kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent_core.llm.errors import Failure
from agent_core.llm.openai_format import Piece, Tokens, ToolFragment, token_count

__all__ = ["failure_in", "frame_of", "piece_in"]


def frame_of(piece: Piece) -> dict[str, Any]:
    """A piece for a frame, without what says nothing."""
    return {name: value for name, value in asdict(piece).items() if value not in ("", (), None)}


def piece_in(frame: object) -> Piece:
    """
    The piece of a frame.

    Raises:
        ValueError: It is none.
    """
    data = _mapping(frame)
    tokens = data.get("tokens")
    cost = data.get("cost_usd")
    finish = data.get("finish")
    return Piece(
        text=_text(data.get("text", "")),
        fragments=tuple(_fragment(_mapping(one)) for one in _list(data.get("fragments", []))),
        tokens=None if tokens is None else Tokens(**{n: token_count(v) for n, v in _mapping(tokens).items()}),
        thought=token_count(data.get("thought", 0)),
        finish=None if finish is None else _text(finish),
        cost_usd=float(cost) if isinstance(cost, int | float) and 0 <= cost < math.inf else None,
    )


def failure_in(frame: object) -> Failure:
    """
    The failure of a frame.

    Raises:
        ValueError: It is none.
    """
    data = _mapping(frame)
    status = data.get("status")
    headers = _mapping(data.get("headers", {}))
    return Failure(
        status=status if isinstance(status, int) else None,
        text=_text(data.get("text", "")),
        code=_text(data.get("code", "")),
        headers={_text(name): _text(value) for name, value in headers.items()},
        transport=bool(data.get("transport")),
        unreadable=_text(data.get("unreadable", "")),
    )


def _fragment(data: Mapping[str, Any]) -> ToolFragment:
    index = data.get("index")
    return ToolFragment(
        index=index if isinstance(index, int) else None,
        **{name: _text(data.get(name, "")) for name in ("id", "name", "arguments", "signature")},
    )


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object where one is due")  # noqa: TRY004 - about content, not types
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("no list where one is due")  # noqa: TRY004 - likewise
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text where one is due")  # noqa: TRY004 - likewise
    return value
