"""
Detects which signals the queue in PostgreSQL must fire, by triggers that record what becomes true. They
append JSON to a transaction-local setting, which works through a pooler, vanishes in a rollback and is read
with the commit. As each record copies the earlier ones, beyond a limit it becomes `TOO_MANY`, and all signals
fire (`gateway.store.sql.signals`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.store.postgres.postgres_connection import TOO_MANY
from gateway.store.sql.change_triggers import RULES, Rule

_MAX_CHARS = 65_536
_NOTE = f"""
CREATE FUNCTION {{schema}}.note(VARIADIC fact json[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE noted text := COALESCE(current_setting('{{facts}}', true), '');
BEGIN
    IF noted <> '{TOO_MANY}' THEN
        PERFORM set_config('{{facts}}', CASE WHEN length(noted) > {_MAX_CHARS} THEN '{TOO_MANY}'
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
_WORK = """
    {schema}.note('"session"', to_json(session), to_json(next_at), to_json(channel), to_json(kind),
        sender -> 'address', sender -> 'verified')
    FROM (SELECT *, {schema}.sender_of(payload) AS sender FROM {inbox} WHERE {which}) AS work
"""


def _statements(rule: Rule) -> Iterator[str]:
    here, inbox = "home = NEW.home AND", "{schema}.all_inbox"
    columns = "".join(f", to_json(NEW.{column})" for column in rule.columns)
    which = rule.work.format(here=here, inbox=inbox)
    found = _WORK.replace("{inbox}", inbox).replace("{which}", which)
    fired = found if rule.work else f"{{schema}}.note('\"{rule.signal}\"'{columns})"
    yield (
        f"CREATE FUNCTION {{schema}}.{rule.name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM {fired}; RETURN NULL; END $$"
    )
    yield (
        f"CREATE TRIGGER {rule.name} AFTER {rule.moment} ON {{schema}}.all_{rule.table}"
        f" FOR EACH ROW WHEN ({rule.when}) EXECUTE FUNCTION {{schema}}.{rule.name}()"
    )


TRIGGERS = (_NOTE, _SENDER, *(statement for rule in RULES for statement in _statements(rule)))
"""Functions and triggers; ``{schema}`` and ``{facts}`` are placeholders."""
