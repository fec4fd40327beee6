"""
Detects which signals the queue in PostgreSQL must fire, by triggers that record what becomes true.

Like the embedded queue's (`gateway.queue.sqlite.watching`), they append JSON to a transaction-local setting,
which works through a pooler, vanishes in a rollback and is read with the commit. As each record copies the
earlier ones, beyond a limit it becomes `TOO_MANY`, and all signals fire (`gateway.queue.sql.all_signals`).
"""

# ruff: noqa: S608 - only constants of this file are put together

from __future__ import annotations

from gateway.queue.postgres.connection import TOO_MANY

_MOST_CHARS = 65_536
_NOTE = f"""
CREATE FUNCTION {{schema}}.note(VARIADIC fact json[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE noted text := COALESCE(current_setting('{{facts}}', true), '');
BEGIN
    IF noted <> '{TOO_MANY}' THEN
        PERFORM set_config('{{facts}}', CASE WHEN length(noted) > {_MOST_CHARS} THEN '{TOO_MANY}'
            ELSE noted || array_to_json(fact)::text || E'\\n' END, true);
    END IF;
END $$
"""
# A damaged payload must not prevent changes to its row. PostgreSQL rejects NUL anywhere in JSON, so a payload
# with one is read again with a replacement.
_SENDER = r"""
CREATE FUNCTION {schema}.sender_of(payload TEXT) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    BEGIN
        RETURN payload::json -> 'sender';
    EXCEPTION WHEN OTHERS THEN
        RETURN regexp_replace(payload, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json -> 'sender';
    END;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$
"""
_WORK = (
    "sender := {schema}.sender_of(row.payload);"
    " PERFORM {schema}.note('\"session\"', to_json(row.session), to_json(row.next_at), to_json(row.channel),"
    " to_json(row.kind), to_json(%s), sender -> 'address', sender -> 'verified');"
)
_INBOX = f"""
CREATE FUNCTION {{schema}}.inbox_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE row {{schema}}.all_inbox; sender json;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state = 'ready' THEN
            row := NEW;
            {_WORK % "true"}
        END IF;
        RETURN NULL;
    END IF;
    -- What is given back without a time is no news: whoever gives it back knows when it goes on.
    IF NEW.state = 'ready' AND NOT (OLD.state = 'running' AND NEW.next_at IS NULL)
            AND (OLD.state <> 'ready' OR (OLD.next_at IS NOT NULL
                AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at))) THEN
        row := NEW;
        {_WORK % "false"}
    END IF;
    -- What is out of the way lets the next one go.
    IF OLD.state IN ('ready', 'running') AND NEW.state NOT IN ('ready', 'running') THEN
        SELECT * INTO row FROM {{schema}}.all_inbox AS next WHERE next.home = NEW.home
            AND next.session = NEW.session AND next.state = 'ready'
            ORDER BY COALESCE(next.next_at, 0), next.id LIMIT 1;
        IF FOUND THEN
            {_WORK % "false"}
        END IF;
    END IF;
    IF OLD.state = 'running' AND NEW.state = 'ignored' THEN
        PERFORM {{schema}}.note('"stopped"', to_json(NEW.session), to_json(NEW.turn), to_json(NEW.error));
    END IF;
    RETURN NULL;
END $$
"""
_OUTBOX = """
CREATE FUNCTION {schema}.outbox_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state = 'pending' THEN
            PERFORM {schema}.note('"outbox"', to_json(NEW.channel));
        ELSIF NEW.state = 'held' THEN
            PERFORM {schema}.note('"drafts"', to_json(NEW.channel));
        END IF;
    ELSIF (NEW.state IN ('pending', 'dead', 'unknown') AND NEW.state <> OLD.state)
            OR (NEW.state IN ('pending', 'uncertain') AND OLD.next_at IS NOT NULL
                AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at)) THEN
        PERFORM {schema}.note('"outbox"', to_json(NEW.channel));
    END IF;
    RETURN NULL;
END $$
"""
_LINE = """
CREATE FUNCTION {schema}.line_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.note('"history"', to_json(NEW.session));
    RETURN NULL;
END $$
"""
_USAGE = """
CREATE FUNCTION {schema}.usage_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.note('"usage"', to_json(NEW.day));
    RETURN NULL;
END $$
"""
_JOBS = """
CREATE FUNCTION {schema}.job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR (NEW.state = 'active' AND NEW.next_at IS NOT NULL
            AND (OLD.state <> 'active' OR OLD.next_at IS NULL OR NEW.next_at < OLD.next_at)) THEN
        PERFORM {schema}.note('"jobs"', to_json(NEW.id));
    END IF;
    RETURN NULL;
END $$
"""


def _trigger(table: str, function: str, moments: str) -> str:
    return (
        f"CREATE TRIGGER {function} AFTER {moments} ON {{schema}}.all_{table}"
        f" FOR EACH ROW EXECUTE FUNCTION {{schema}}.{function}()"
    )


TRIGGERS = (
    _NOTE,
    _SENDER,
    _INBOX,
    _OUTBOX,
    _LINE,
    _USAGE,
    _JOBS,
    _trigger("inbox", "inbox_changed", "INSERT OR UPDATE OF state, next_at"),
    _trigger("outbox", "outbox_changed", "INSERT OR UPDATE OF state, next_at"),
    _trigger("history_journal", "line_added", "INSERT"),
    _trigger("usage", "usage_changed", "INSERT OR UPDATE"),
    _trigger("jobs", "job_changed", "INSERT OR UPDATE OF state, next_at"),
)
"""Functions and triggers; ``{schema}`` and ``{facts}`` are placeholders."""
