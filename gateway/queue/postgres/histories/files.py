"""Finds the files of messages that history lines name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.queue.sql.engine import ConnectionPort

_PATH = re.compile(r"attachments/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,8}")
_AT_ONCE = 500


def files_in(db: ConnectionPort) -> set[str]:
    """Return the `Attachment.path` of every file that a line names, by searching the texts."""
    return set(_named(db))


def _named(db: ConnectionPort) -> Iterator[str]:
    place = ("", -1)
    # Each statement reads only some of the lines, because its time is limited.
    while rows := db.execute(
        "SELECT session, seq, CASE WHEN strpos(line, 'attachments/') > 0 THEN line END"
        " FROM (SELECT session, seq, line FROM history WHERE (session, seq) > (?, ?)"
        " ORDER BY session, seq LIMIT ?) AS few ORDER BY session, seq",
        (*place, _AT_ONCE),
    ).fetchall():
        for _, _, raw in rows:
            if raw is not None:
                yield from _PATH.findall(raw)
        place = (rows[-1][0], rows[-1][1])
