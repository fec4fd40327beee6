CREATE SCHEMA squidbot;
CREATE FUNCTION squidbot.inbox_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE row squidbot.all_inbox; sender json;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state = 'ready' THEN
            row := NEW;
            sender := squidbot.sender_of(row.payload); PERFORM squidbot.note('"session"', to_json(row.session), to_json(row.next_at), to_json(row.channel), to_json(row.kind), to_json(true), sender -> 'address', sender -> 'verified');
        END IF;
        RETURN NULL;
    END IF;
    -- What is given back without a time is no news: whoever gives it back knows when it goes on.
    IF NEW.state = 'ready' AND NOT (OLD.state = 'running' AND NEW.next_at IS NULL)
            AND (OLD.state <> 'ready' OR (OLD.next_at IS NOT NULL
                AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at))) THEN
        row := NEW;
        sender := squidbot.sender_of(row.payload); PERFORM squidbot.note('"session"', to_json(row.session), to_json(row.next_at), to_json(row.channel), to_json(row.kind), to_json(false), sender -> 'address', sender -> 'verified');
    END IF;
    -- What is out of the way lets the next one go.
    IF OLD.state IN ('ready', 'running') AND NEW.state NOT IN ('ready', 'running') THEN
        SELECT * INTO row FROM squidbot.all_inbox AS next WHERE next.home = NEW.home
            AND next.session = NEW.session AND next.state = 'ready'
            ORDER BY COALESCE(next.next_at, 0), next.id LIMIT 1;
        IF FOUND THEN
            sender := squidbot.sender_of(row.payload); PERFORM squidbot.note('"session"', to_json(row.session), to_json(row.next_at), to_json(row.channel), to_json(row.kind), to_json(false), sender -> 'address', sender -> 'verified');
        END IF;
    END IF;
    IF OLD.state = 'running' AND NEW.state = 'ignored' THEN
        PERFORM squidbot.note('"stopped"', to_json(NEW.session), to_json(NEW.turn), to_json(NEW.error));
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION squidbot.job_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'INSERT' OR (NEW.state = 'active' AND NEW.next_at IS NOT NULL
            AND (OLD.state <> 'active' OR OLD.next_at IS NULL OR NEW.next_at < OLD.next_at)) THEN
        PERFORM squidbot.note('"jobs"', to_json(NEW.id));
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION squidbot.line_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM squidbot.note('"history"', to_json(NEW.session));
    RETURN NULL;
END $$;
CREATE FUNCTION squidbot.note(VARIADIC fact json[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE noted text := COALESCE(current_setting('squidbot.facts', true), '');
BEGIN
    IF noted <> '*' THEN
        PERFORM set_config('squidbot.facts', CASE WHEN length(noted) > 65536 THEN '*'
            ELSE noted || array_to_json(fact)::text || E'\n' END, true);
    END IF;
END $$;
CREATE FUNCTION squidbot.outbox_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state = 'pending' THEN
            PERFORM squidbot.note('"outbox"', to_json(NEW.channel));
        ELSIF NEW.state = 'held' THEN
            PERFORM squidbot.note('"drafts"', to_json(NEW.channel));
        END IF;
    ELSIF (NEW.state IN ('pending', 'dead', 'unknown') AND NEW.state <> OLD.state)
            OR (NEW.state IN ('pending', 'uncertain') AND OLD.next_at IS NOT NULL
                AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at)) THEN
        PERFORM squidbot.note('"outbox"', to_json(NEW.channel));
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION squidbot.sender_of(payload text) RETURNS json
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
    BEGIN
        RETURN payload::json -> 'sender';
    EXCEPTION WHEN OTHERS THEN
        RETURN regexp_replace(payload, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json -> 'sender';
    END;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;
CREATE FUNCTION squidbot.usage_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM squidbot.note('"usage"', to_json(NEW.day));
    RETURN NULL;
END $$;
CREATE TABLE squidbot.all_account_document (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    folder text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    content bytea,
    claim text COLLATE pg_catalog."C",
    claimed_until double precision
);
CREATE VIEW squidbot.account_document AS
 SELECT all_account_document.folder,
    all_account_document.name,
    all_account_document.content,
    all_account_document.claim,
    all_account_document.claimed_until,
    all_account_document.home
   FROM squidbot.all_account_document
  WHERE (all_account_document.home = (current_setting('squidbot.home'::text))::bigint);
CREATE TABLE squidbot.all_account_file (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    folder text NOT NULL COLLATE pg_catalog."C",
    file text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL
);
CREATE VIEW squidbot.account_file AS
 SELECT all_account_file.folder,
    all_account_file.file,
    all_account_file.generation,
    all_account_file.home
   FROM squidbot.all_account_file
  WHERE (all_account_file.home = (current_setting('squidbot.home'::text))::bigint);
CREATE TABLE squidbot.all_account_row (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    folder text NOT NULL COLLATE pg_catalog."C",
    file text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    content bytea NOT NULL
);
CREATE VIEW squidbot.account_row AS
 SELECT all_account_row.folder,
    all_account_row.file,
    all_account_row.kind,
    all_account_row.key,
    all_account_row.content,
    all_account_row.home
   FROM squidbot.all_account_row
  WHERE (all_account_row.home = (current_setting('squidbot.home'::text))::bigint);
CREATE TABLE squidbot.all_collected (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    channel text NOT NULL COLLATE pg_catalog."C",
    person text NOT NULL COLLATE pg_catalog."C",
    text text NOT NULL COLLATE pg_catalog."C",
    at double precision NOT NULL
);
ALTER TABLE squidbot.all_collected ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_collected_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_consolidation (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    session text NOT NULL COLLATE pg_catalog."C",
    record text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL
);
CREATE TABLE squidbot.all_deaths (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    number bigint NOT NULL,
    item text NOT NULL COLLATE pg_catalog."C",
    step bigint NOT NULL,
    company bigint NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE squidbot.all_grants (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    tool text NOT NULL COLLATE pg_catalog."C",
    what text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    people text NOT NULL COLLATE pg_catalog."C",
    given_by text NOT NULL COLLATE pg_catalog."C",
    at double precision NOT NULL,
    until double precision NOT NULL,
    turn text NOT NULL COLLATE pg_catalog."C",
    origins text NOT NULL COLLATE pg_catalog."C",
    seen_at double precision
);
CREATE TABLE squidbot.all_history (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    session text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    msg_id text COLLATE pg_catalog."C",
    line text NOT NULL COLLATE pg_catalog."C",
    scope text COLLATE pg_catalog."C",
    at bigint NOT NULL,
    said text COLLATE pg_catalog."C",
    words tsvector
);
CREATE TABLE squidbot.all_history_journal (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    session text NOT NULL COLLATE pg_catalog."C",
    line text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE squidbot.all_history_journal ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_history_journal_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_inbox (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    channel text NOT NULL COLLATE pg_catalog."C",
    account text NOT NULL COLLATE pg_catalog."C",
    native_id text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    payload text COLLATE pg_catalog."C",
    state text NOT NULL COLLATE pg_catalog."C",
    attempts bigint DEFAULT 0 NOT NULL,
    deferrals bigint DEFAULT 0 NOT NULL,
    first_deferred_at double precision,
    next_at double precision,
    fence bigint DEFAULT 0 NOT NULL,
    turn text COLLATE pg_catalog."C",
    tail bigint,
    error text COLLATE pg_catalog."C",
    accepted_at double precision NOT NULL,
    ended_at double precision,
    withdrawn text COLLATE pg_catalog."C",
    waits_for text COLLATE pg_catalog."C",
    CONSTRAINT all_inbox_state_check CHECK ((state = ANY (ARRAY['ready'::text, 'running'::text, 'answered'::text, 'settled'::text, 'dead'::text, 'ignored'::text, 'quarantined'::text])))
);
ALTER TABLE squidbot.all_inbox ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_inbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_jobs (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    text text NOT NULL COLLATE pg_catalog."C",
    timing text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    account text NOT NULL COLLATE pg_catalog."C",
    person text NOT NULL COLLATE pg_catalog."C",
    audience text NOT NULL COLLATE pg_catalog."C",
    context text NOT NULL COLLATE pg_catalog."C",
    state text NOT NULL COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    next_at double precision,
    last_at double precision,
    ended_at double precision,
    revision bigint NOT NULL,
    note text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT all_jobs_state_check CHECK ((state = ANY (ARRAY['active'::text, 'paused'::text, 'done'::text])))
);
CREATE TABLE squidbot.all_leases (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    holder text COLLATE pg_catalog."C",
    fence bigint NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE squidbot.all_ledger (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    instant double precision NOT NULL,
    until double precision NOT NULL,
    ticks bigint NOT NULL,
    at double precision NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL COLLATE pg_catalog."C",
    tokens bigint NOT NULL,
    calls bigint NOT NULL,
    took_s double precision NOT NULL,
    said text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE squidbot.all_ledger ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_ledger_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_memory (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    scope text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    line text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_meta (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_once (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    topic text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_outbox (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    inbox_id bigint,
    turn text COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL COLLATE pg_catalog."C",
    account text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    payload text COLLATE pg_catalog."C",
    state text NOT NULL COLLATE pg_catalog."C",
    attempts bigint DEFAULT 0 NOT NULL,
    next_at double precision,
    uncertain_at double precision,
    provider_id text COLLATE pg_catalog."C",
    error text COLLATE pg_catalog."C",
    created_at double precision NOT NULL,
    ended_at double precision,
    waits_for text COLLATE pg_catalog."C",
    CONSTRAINT all_outbox_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'sending'::text, 'uncertain'::text, 'sent'::text, 'dead'::text, 'unknown'::text, 'held'::text])))
);
ALTER TABLE squidbot.all_outbox ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_positions (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    channel text NOT NULL COLLATE pg_catalog."C",
    account text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_receipts (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    id bigint NOT NULL,
    turn text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    at double precision NOT NULL,
    session text NOT NULL COLLATE pg_catalog."C",
    tool text NOT NULL COLLATE pg_catalog."C",
    effect text NOT NULL COLLATE pg_catalog."C",
    call text NOT NULL COLLATE pg_catalog."C",
    asked_by text NOT NULL COLLATE pg_catalog."C",
    origins text NOT NULL COLLATE pg_catalog."C",
    approved_by text NOT NULL COLLATE pg_catalog."C",
    outcome text NOT NULL COLLATE pg_catalog."C",
    told text COLLATE pg_catalog."C",
    undo text COLLATE pg_catalog."C",
    ended_at double precision
);
ALTER TABLE squidbot.all_receipts ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME squidbot.all_receipts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE squidbot.all_seen (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    digest bytea NOT NULL,
    day bigint NOT NULL
);
CREATE TABLE squidbot.all_state (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    topic text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_turn_steps (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    turn text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    request text NOT NULL COLLATE pg_catalog."C",
    result text COLLATE pg_catalog."C"
);
CREATE TABLE squidbot.all_usage (
    home bigint DEFAULT (current_setting('squidbot.home'::text))::bigint NOT NULL,
    day text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C",
    purpose text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL COLLATE pg_catalog."C",
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    calls bigint NOT NULL,
    cost_usd double precision,
    cached_tokens bigint DEFAULT 0 NOT NULL,
    thinking_tokens bigint DEFAULT 0 NOT NULL
);
CREATE VIEW squidbot.collected AS
 SELECT all_collected.id,
    all_collected.channel,
    all_collected.person,
    all_collected.text,
    all_collected.at,
    all_collected.home
   FROM squidbot.all_collected
  WHERE (all_collected.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.consolidation AS
 SELECT all_consolidation.session,
    all_consolidation.record,
    all_consolidation.version,
    all_consolidation.home
   FROM squidbot.all_consolidation
  WHERE (all_consolidation.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.deaths AS
 SELECT all_deaths.number,
    all_deaths.item,
    all_deaths.step,
    all_deaths.company,
    all_deaths.at,
    all_deaths.home
   FROM squidbot.all_deaths
  WHERE (all_deaths.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.grants AS
 SELECT all_grants.id,
    all_grants.kind,
    all_grants.tool,
    all_grants.what,
    all_grants.session,
    all_grants.people,
    all_grants.given_by,
    all_grants.at,
    all_grants.until,
    all_grants.turn,
    all_grants.origins,
    all_grants.seen_at,
    all_grants.home
   FROM squidbot.all_grants
  WHERE (all_grants.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.history AS
 SELECT all_history.session,
    all_history.seq,
    all_history.msg_id,
    all_history.line,
    all_history.scope,
    all_history.at,
    all_history.said,
    all_history.words,
    all_history.home
   FROM squidbot.all_history
  WHERE (all_history.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.history_journal AS
 SELECT all_history_journal.id,
    all_history_journal.session,
    all_history_journal.line,
    all_history_journal.home
   FROM squidbot.all_history_journal
  WHERE (all_history_journal.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.inbox AS
 SELECT all_inbox.id,
    all_inbox.channel,
    all_inbox.account,
    all_inbox.native_id,
    all_inbox.session,
    all_inbox.kind,
    all_inbox.payload,
    all_inbox.state,
    all_inbox.attempts,
    all_inbox.deferrals,
    all_inbox.first_deferred_at,
    all_inbox.next_at,
    all_inbox.fence,
    all_inbox.turn,
    all_inbox.tail,
    all_inbox.error,
    all_inbox.accepted_at,
    all_inbox.ended_at,
    all_inbox.withdrawn,
    all_inbox.waits_for,
    all_inbox.home
   FROM squidbot.all_inbox
  WHERE (all_inbox.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.jobs AS
 SELECT all_jobs.id,
    all_jobs.kind,
    all_jobs.text,
    all_jobs.timing,
    all_jobs.session,
    all_jobs.account,
    all_jobs.person,
    all_jobs.audience,
    all_jobs.context,
    all_jobs.state,
    all_jobs.created_at,
    all_jobs.next_at,
    all_jobs.last_at,
    all_jobs.ended_at,
    all_jobs.revision,
    all_jobs.note,
    all_jobs.home
   FROM squidbot.all_jobs
  WHERE (all_jobs.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.leases AS
 SELECT all_leases.name,
    all_leases.holder,
    all_leases.fence,
    all_leases.expires_at,
    all_leases.home
   FROM squidbot.all_leases
  WHERE (all_leases.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.ledger AS
 SELECT all_ledger.id,
    all_ledger.name,
    all_ledger.instant,
    all_ledger.until,
    all_ledger.ticks,
    all_ledger.at,
    all_ledger.outcome,
    all_ledger.reason,
    all_ledger.tokens,
    all_ledger.calls,
    all_ledger.took_s,
    all_ledger.said,
    all_ledger.home
   FROM squidbot.all_ledger
  WHERE (all_ledger.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.memory AS
 SELECT all_memory.scope,
    all_memory.version,
    all_memory.line,
    all_memory.home
   FROM squidbot.all_memory
  WHERE (all_memory.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.meta AS
 SELECT all_meta.name,
    all_meta.value,
    all_meta.home
   FROM squidbot.all_meta
  WHERE (all_meta.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.once AS
 SELECT all_once.topic,
    all_once.value,
    all_once.home
   FROM squidbot.all_once
  WHERE (all_once.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.outbox AS
 SELECT all_outbox.id,
    all_outbox.inbox_id,
    all_outbox.turn,
    all_outbox.key,
    all_outbox.channel,
    all_outbox.account,
    all_outbox.session,
    all_outbox.payload,
    all_outbox.state,
    all_outbox.attempts,
    all_outbox.next_at,
    all_outbox.uncertain_at,
    all_outbox.provider_id,
    all_outbox.error,
    all_outbox.created_at,
    all_outbox.ended_at,
    all_outbox.waits_for,
    all_outbox.home
   FROM squidbot.all_outbox
  WHERE (all_outbox.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.positions AS
 SELECT all_positions.channel,
    all_positions.account,
    all_positions.name,
    all_positions.value,
    all_positions.home
   FROM squidbot.all_positions
  WHERE (all_positions.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.receipts AS
 SELECT all_receipts.id,
    all_receipts.turn,
    all_receipts.number,
    all_receipts.at,
    all_receipts.session,
    all_receipts.tool,
    all_receipts.effect,
    all_receipts.call,
    all_receipts.asked_by,
    all_receipts.origins,
    all_receipts.approved_by,
    all_receipts.outcome,
    all_receipts.told,
    all_receipts.undo,
    all_receipts.ended_at,
    all_receipts.home
   FROM squidbot.all_receipts
  WHERE (all_receipts.home = (current_setting('squidbot.home'::text))::bigint);
CREATE TABLE squidbot.schema (
    version bigint NOT NULL,
    oldest bigint NOT NULL
);
CREATE VIEW squidbot.seen AS
 SELECT all_seen.digest,
    all_seen.day,
    all_seen.home
   FROM squidbot.all_seen
  WHERE (all_seen.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.state AS
 SELECT all_state.topic,
    all_state.value,
    all_state.home
   FROM squidbot.all_state
  WHERE (all_state.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.turn_steps AS
 SELECT all_turn_steps.turn,
    all_turn_steps.number,
    all_turn_steps.kind,
    all_turn_steps.digest,
    all_turn_steps.request,
    all_turn_steps.result,
    all_turn_steps.home
   FROM squidbot.all_turn_steps
  WHERE (all_turn_steps.home = (current_setting('squidbot.home'::text))::bigint);
CREATE VIEW squidbot.usage AS
 SELECT all_usage.day,
    all_usage.session,
    all_usage.purpose,
    all_usage.model,
    all_usage.prompt_tokens,
    all_usage.completion_tokens,
    all_usage.calls,
    all_usage.cost_usd,
    all_usage.cached_tokens,
    all_usage.thinking_tokens,
    all_usage.home
   FROM squidbot.all_usage
  WHERE (all_usage.home = (current_setting('squidbot.home'::text))::bigint);
INSERT INTO squidbot.all_history VALUES (1, 'matrix/!room%3ahs.test', 0, '1-a165e9bc.0', '{"id":"1-a165e9bc.0","turn":"1-a165e9bc","role":"user","content":"text of a","timestamp":"2026-01-01T00:00:00Z","sender":null,"n":0}', NULL, 1767225600000, NULL, NULL);
INSERT INTO squidbot.all_history VALUES (1, 'matrix/!room%3ahs.test', 1, '1-a165e9bc.1', '{"id":"1-a165e9bc.1","turn":"1-a165e9bc","role":"assistant","content":"yes","timestamp":"2026-01-01T00:00:00Z","sender":null,"n":1}', NULL, 1767225600000, NULL, NULL);
INSERT INTO squidbot.all_inbox VALUES (1, 1, 'matrix', '@bot:hs.test', 'a', 'matrix/!room%3ahs.test', 'message', '{"version":1,"channel":"matrix","account":"@bot:hs.test","native_id":"a","session":"matrix/!room%3ahs.test","sender":{"address":"@alice:hs.test","name":"Alice","verified":true},"text":"text of a","received_at":"2026-01-01T00:00:00Z","audience":"direct","addressed":true,"kind":"message","attachments":[],"context":{"event_id":"a"},"background":[]}', 'answered', 1, 0, NULL, NULL, 1, '1-a165e9bc', 1, NULL, 1767225600, 1767225600, NULL, NULL);
INSERT INTO squidbot.all_inbox VALUES (1, 2, 'matrix', '@bot:hs.test', 'b', 'matrix/!room%3ahs.test', 'message', '{"version":1,"channel":"matrix","account":"@bot:hs.test","native_id":"b","session":"matrix/!room%3ahs.test","sender":{"address":"@alice:hs.test","name":"Alice","verified":true},"text":"text of b","received_at":"2026-01-01T00:00:00Z","audience":"direct","addressed":true,"kind":"message","attachments":[],"context":{"event_id":"b"},"background":[]}', 'ready', 0, 0, NULL, NULL, 0, NULL, NULL, NULL, 1767225600, NULL, NULL, NULL);
INSERT INTO squidbot.all_meta VALUES (1, 'secret', '00000000000000000000000000000000');
INSERT INTO squidbot.all_outbox VALUES (1, 1, 1, '1-a165e9bc', '83190db8944c9b85dd79db71600e3ec5', 'matrix', '@bot:hs.test', 'matrix/!room%3ahs.test', '{"version":1,"id":"83190db8944c9b85dd79db71600e3ec5","channel":"matrix","account":"@bot:hs.test","session":"matrix/!room%3ahs.test","text":"answer to a","created_at":"2026-01-01T00:00:00Z","kind":"reply","attachments":[],"context":{"event_id":"a"},"remembered":false}', 'pending', 0, NULL, NULL, NULL, NULL, 1767225600, NULL, NULL);
INSERT INTO squidbot.all_positions VALUES (1, 'matrix', '@bot:hs.test', 'next_batch', 's1');
INSERT INTO squidbot.schema VALUES (13, 13);
SELECT pg_catalog.setval('squidbot.all_collected_id_seq', 1, false);
SELECT pg_catalog.setval('squidbot.all_history_journal_id_seq', 1, false);
SELECT pg_catalog.setval('squidbot.all_inbox_id_seq', 2, true);
SELECT pg_catalog.setval('squidbot.all_ledger_id_seq', 1, false);
SELECT pg_catalog.setval('squidbot.all_outbox_id_seq', 1, true);
SELECT pg_catalog.setval('squidbot.all_receipts_id_seq', 1, false);
ALTER TABLE ONLY squidbot.all_account_document
    ADD CONSTRAINT all_account_document_pkey PRIMARY KEY (home, folder, name);
ALTER TABLE ONLY squidbot.all_account_file
    ADD CONSTRAINT all_account_file_pkey PRIMARY KEY (home, folder, file);
ALTER TABLE ONLY squidbot.all_account_row
    ADD CONSTRAINT all_account_row_pkey PRIMARY KEY (home, folder, file, kind, key);
ALTER TABLE ONLY squidbot.all_collected
    ADD CONSTRAINT all_collected_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_consolidation
    ADD CONSTRAINT all_consolidation_pkey PRIMARY KEY (home, session);
ALTER TABLE ONLY squidbot.all_deaths
    ADD CONSTRAINT all_deaths_pkey PRIMARY KEY (home, item, number);
ALTER TABLE ONLY squidbot.all_grants
    ADD CONSTRAINT all_grants_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_history
    ADD CONSTRAINT all_history_home_session_msg_id_key UNIQUE (home, session, msg_id);
ALTER TABLE ONLY squidbot.all_history_journal
    ADD CONSTRAINT all_history_journal_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_history
    ADD CONSTRAINT all_history_pkey PRIMARY KEY (home, session, seq);
ALTER TABLE ONLY squidbot.all_inbox
    ADD CONSTRAINT all_inbox_home_channel_account_native_id_key UNIQUE (home, channel, account, native_id);
ALTER TABLE ONLY squidbot.all_inbox
    ADD CONSTRAINT all_inbox_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_jobs
    ADD CONSTRAINT all_jobs_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_leases
    ADD CONSTRAINT all_leases_pkey PRIMARY KEY (home, name);
ALTER TABLE ONLY squidbot.all_ledger
    ADD CONSTRAINT all_ledger_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_memory
    ADD CONSTRAINT all_memory_pkey PRIMARY KEY (home, scope, version);
ALTER TABLE ONLY squidbot.all_meta
    ADD CONSTRAINT all_meta_pkey PRIMARY KEY (home, name);
ALTER TABLE ONLY squidbot.all_once
    ADD CONSTRAINT all_once_pkey PRIMARY KEY (home, topic);
ALTER TABLE ONLY squidbot.all_outbox
    ADD CONSTRAINT all_outbox_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_positions
    ADD CONSTRAINT all_positions_pkey PRIMARY KEY (home, channel, account, name);
ALTER TABLE ONLY squidbot.all_receipts
    ADD CONSTRAINT all_receipts_home_turn_number_key UNIQUE (home, turn, number);
ALTER TABLE ONLY squidbot.all_receipts
    ADD CONSTRAINT all_receipts_pkey PRIMARY KEY (home, id);
ALTER TABLE ONLY squidbot.all_seen
    ADD CONSTRAINT all_seen_pkey PRIMARY KEY (home, digest);
ALTER TABLE ONLY squidbot.all_state
    ADD CONSTRAINT all_state_pkey PRIMARY KEY (home, topic);
ALTER TABLE ONLY squidbot.all_turn_steps
    ADD CONSTRAINT all_turn_steps_pkey PRIMARY KEY (home, turn, number);
ALTER TABLE ONLY squidbot.all_usage
    ADD CONSTRAINT all_usage_pkey PRIMARY KEY (home, day, session, purpose, model);
CREATE INDEX history_first ON squidbot.all_history USING btree (home, session) WHERE (seq = 0);
CREATE INDEX history_journal_session ON squidbot.all_history_journal USING btree (home, session);
CREATE INDEX history_words ON squidbot.all_history USING gin (words) WITH (fastupdate=off);
CREATE INDEX inbox_background ON squidbot.all_inbox USING btree (home, id) WHERE (kind = 'background_job'::text);
CREATE INDEX inbox_left ON squidbot.all_inbox USING btree (home, state, id) WHERE (state = ANY (ARRAY['dead'::text, 'quarantined'::text]));
CREATE INDEX inbox_running ON squidbot.all_inbox USING btree (home, session) WHERE (state = 'running'::text);
CREATE INDEX inbox_taken_back ON squidbot.all_inbox USING btree (home, state, accepted_at) WHERE ((state = 'ignored'::text) AND (turn IS NOT NULL));
CREATE INDEX inbox_turn ON squidbot.all_inbox USING btree (home, turn) WHERE (state = ANY (ARRAY['ready'::text, 'running'::text]));
CREATE INDEX inbox_work ON squidbot.all_inbox USING btree (home, session, id) WHERE (state = ANY (ARRAY['ready'::text, 'running'::text]));
CREATE INDEX ledger_name ON squidbot.all_ledger USING btree (home, name, until);
CREATE INDEX ledger_said ON squidbot.all_ledger USING btree (home, said) WHERE (said <> ''::text);
CREATE INDEX outbox_inbox ON squidbot.all_outbox USING btree (home, inbox_id);
CREATE INDEX outbox_key ON squidbot.all_outbox USING btree (home, key);
CREATE INDEX outbox_open ON squidbot.all_outbox USING btree (home, channel, account, session, id) WHERE (state = ANY (ARRAY['pending'::text, 'sending'::text, 'uncertain'::text]));
CREATE INDEX outbox_provider ON squidbot.all_outbox USING btree (home, provider_id) WHERE (provider_id IS NOT NULL);
CREATE INDEX outbox_session ON squidbot.all_outbox USING btree (home, session, id);
CREATE INDEX outbox_state ON squidbot.all_outbox USING btree (home, state, id) WHERE (state <> 'sent'::text);
CREATE INDEX receipts_at ON squidbot.all_receipts USING btree (home, at);
CREATE TRIGGER inbox_changed AFTER INSERT OR UPDATE OF state, next_at ON squidbot.all_inbox FOR EACH ROW EXECUTE FUNCTION squidbot.inbox_changed();
CREATE TRIGGER job_changed AFTER INSERT OR UPDATE OF state, next_at ON squidbot.all_jobs FOR EACH ROW EXECUTE FUNCTION squidbot.job_changed();
CREATE TRIGGER line_added AFTER INSERT ON squidbot.all_history FOR EACH ROW EXECUTE FUNCTION squidbot.line_added();
CREATE TRIGGER line_added AFTER INSERT ON squidbot.all_history_journal FOR EACH ROW EXECUTE FUNCTION squidbot.line_added();
CREATE TRIGGER outbox_changed AFTER INSERT OR UPDATE OF state, next_at ON squidbot.all_outbox FOR EACH ROW EXECUTE FUNCTION squidbot.outbox_changed();
CREATE TRIGGER usage_changed AFTER INSERT OR UPDATE ON squidbot.all_usage FOR EACH ROW EXECUTE FUNCTION squidbot.usage_changed();
ALTER TABLE ONLY squidbot.all_outbox
    ADD CONSTRAINT all_outbox_home_inbox_id_fkey FOREIGN KEY (home, inbox_id) REFERENCES squidbot.all_inbox(home, id);
