"""The messages between the daemon and litellm's process, as pieces of answers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent_core.children.frame_checks import list_in, object_in, text_in
from agent_core.llm.openai_format import Piece, TokenCounts, ToolFragment, token_count


def frame_of(piece: Piece) -> dict[str, Any]:
    """A piece as a frame, without empty fields."""
    return {name: value for name, value in asdict(piece).items() if value not in ("", (), None, {})}


def piece_in(frame: object) -> Piece:
    """The piece of a frame. Raises `ValueError`: there is none."""
    data = object_in(frame)
    tokens = data.get("tokens")
    cost = data.get("cost_usd")
    finish = data.get("finish")
    return Piece(
        text=text_in(data.get("text", "")),
        fragments=tuple(_fragment(object_in(one)) for one in list_in(data.get("fragments", []))),
        tokens=None
        if tokens is None
        else TokenCounts(**{n: token_count(v) for n, v in object_in(tokens).items()}),
        thought=token_count(data.get("thought", 0)),
        reasoning=object_in(data.get("reasoning", {})),
        finish=None if finish is None else text_in(finish),
        cost_usd=float(cost) if isinstance(cost, int | float) and 0 <= cost < math.inf else None,
    )


def _fragment(data: Mapping[str, Any]) -> ToolFragment:
    index = data.get("index")
    return ToolFragment(
        index=index if isinstance(index, int) else None,
        **{name: text_in(data.get(name, "")) for name in ("id", "name", "arguments", "signature")},
    )
