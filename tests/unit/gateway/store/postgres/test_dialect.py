"""What is done to a statement before PostgreSQL sees it."""

from __future__ import annotations

import pytest

from gateway.store.postgres.postgres_connection import translate


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            "SELECT 1 FROM inbox WHERE id = ? AND x = :name",
            "SELECT 1 FROM inbox WHERE id = %s AND x = %(name)s",
        ),
        ("error NOT LIKE 'rejected%' AND a % b", "error NOT LIKE 'rejected%%' AND a %% b"),
        ("WHERE a = '?' AND b = ':x' AND c = ?", "WHERE a = '?' AND b = ':x' AND c = %s"),
        ("'it''s ?' || ?", "'it''s ?' || %s"),
        ("value::bigint < :x", "value::bigint < %(x)s"),
        ("SET attempts = attempts + ?, x = x + y", "SET attempts = attempts + %s, x = x + y"),
        (
            "INSERT INTO once (topic) VALUES (?) ON CONFLICT (topic) DO NOTHING",
            "INSERT INTO once (topic) VALUES (%s) ON CONFLICT (home, topic) DO NOTHING",
        ),
        ("ON CONFLICT DO NOTHING", "ON CONFLICT DO NOTHING"),
    ],
)
def test_a_statement_is_translated(ours, theirs):
    assert translate(ours) == theirs
