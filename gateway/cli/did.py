"""The command ``squidbot did``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result


def did(*, since: str = "7d", limit: int = 50, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show what the assistant's tools have done, newest first. It is kept for 90 days.

    Args:
        since: Not older than 90s, 15m, 2h, 3d, 1w, or a date such as 2026-01-03T14:05.
        limit: Maximum number of entries.
    """
    from datetime import UTC, datetime

    from gateway.cli.render.receipts import receipts
    from gateway.observability.logs.lines import parse_since
    from gateway.operations.arguments import RequestInvalid

    try:
        moment = parse_since(since, datetime.now(UTC))
    except ValueError as error:
        raise RequestInvalid(str(error)) from error
    answer = ask(where, "receipts", since=moment.isoformat(), limit=limit)
    print_result(as_json, answer, receipts(answer, moment))
    return 0
