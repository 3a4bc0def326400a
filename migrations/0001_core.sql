-- The whole state of the platform. Every tenant's row carries tenant_id, every key starts with it, every
-- reference includes it: a row can only ever point at rows of its own tenant. Row-level security repeats the wall
-- for the queries; the worker connects as firsttoken_app, which can neither bypass nor change it.

create extension if not exists vector;

do $$
begin
    if not exists (select from pg_roles where rolname = 'firsttoken_app') then
        create role firsttoken_app login nosuperuser nobypassrls nocreatedb nocreaterole;
    end if;
exception when duplicate_object or unique_violation then
    null;  -- another database of the same server made it in this moment
end
$$;

-- nullif: after a transaction-local setting ends, Postgres reads it back as '' instead of null.
create function current_tenant() returns uuid
    language sql stable parallel safe
    return nullif(current_setting('app.tenant_id', true), '')::uuid;

create function is_operator() returns boolean
    language sql stable parallel safe
    return coalesce(current_setting('app.operator', true), '') = 'on';

create table tenants (
    id uuid primary key default gen_random_uuid(),
    name text not null unique check (length(name) between 1 and 200),
    created_at timestamptz not null default now()
);

-- Only a keyed hash of the secret is stored; `hint` is its first characters, for people to tell keys apart.
create table api_keys (
    id text primary key,
    tenant_id uuid not null references tenants on delete cascade,
    name text not null check (length(name) between 1 and 200),
    hash bytea not null unique,
    hint text not null,
    scopes text[] not null default '{}',
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
create index on api_keys (tenant_id);

-- One-time links that sign a browser in.
create table sign_in_links (
    hash bytea primary key,
    tenant_id uuid not null references tenants on delete cascade,
    scopes text[] not null default '{}',
    expires_at timestamptz not null
);

create table conversations (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    metadata jsonb not null default '{}',
    primary key (tenant_id, id)
);
create index on conversations (tenant_id, updated_at desc);

-- `payload` is the item in the public contract's shape; `position` orders the items of a conversation.
create table items (
    tenant_id uuid not null,
    conversation_id text not null,
    position bigint generated always as identity,
    id text not null,
    response_id text,
    type text not null,
    payload jsonb not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, conversation_id, position),
    unique (tenant_id, id),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);

-- `body` is the response object of the public contract, `input` the request's own input items.
create table responses (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    conversation_id text,
    previous_response_id text,
    status text not null
        check (status in ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
    created_at timestamptz not null default now(),
    completed_at timestamptz,
    input jsonb not null default '[]',
    body jsonb not null,
    primary key (tenant_id, id)
);
create index on responses (tenant_id, created_at desc);

create table response_events (
    tenant_id uuid not null,
    response_id text not null,
    sequence_number integer not null,
    payload jsonb not null,
    primary key (tenant_id, response_id, sequence_number),
    foreign key (tenant_id, response_id) references responses on delete cascade
);

-- `content` is the extracted text: citations point into it by character offsets.
create table files (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    filename text not null,
    title text not null,
    media_type text not null,
    bytes bigint not null,
    sha256 bytea not null,
    content text not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, id)
);

create table vector_stores (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    name text not null check (length(name) between 1 and 200),
    embedding_model text not null,
    dimensions integer not null,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, id),
    unique (tenant_id, name)
);

-- `path` is where the file came from: the same path in the same store is the same document, re-read.
create table vector_store_files (
    tenant_id uuid not null,
    vector_store_id text not null,
    file_id text not null,
    path text not null,
    status text not null check (status in ('in_progress', 'completed', 'cancelled', 'failed')),
    attributes jsonb not null default '{}',
    created_at timestamptz not null default now(),
    primary key (tenant_id, vector_store_id, file_id),
    unique (tenant_id, vector_store_id, path),
    foreign key (tenant_id, vector_store_id) references vector_stores on delete cascade,
    foreign key (tenant_id, file_id) references files on delete cascade
);

-- A passage: a span of its file's content, its unit vector, and the int8 vectors of its token windows
-- (late interaction; one float16 scale a window). `lexemes` feeds the idf-weighted full-text score; it has no index,
-- because full-text operators are not leakproof and row-level security would keep Postgres from using it.
create table chunks (
    tenant_id uuid not null,
    vector_store_id text not null,
    file_id text not null,
    ordinal integer not null,
    heading text not null default '',
    text text not null,
    start_char integer not null,
    end_char integer not null check (end_char > start_char),
    tokens integer not null,
    embedding halfvec not null,
    windows bytea not null,
    window_scales bytea not null,
    lexemes tsvector not null generated always as (to_tsvector('english', heading || ' ' || text)) stored,
    primary key (tenant_id, vector_store_id, file_id, ordinal),
    foreign key (tenant_id, vector_store_id, file_id) references vector_store_files on delete cascade
);

-- In how many chunks of a store a lexeme occurs; refreshed after an ingest.
create table lexeme_counts (
    tenant_id uuid not null,
    vector_store_id text not null,
    lexeme text not null,
    chunks integer not null,
    primary key (tenant_id, vector_store_id, lexeme),
    foreign key (tenant_id, vector_store_id) references vector_stores on delete cascade
);

create table traces (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    started_at timestamptz not null,
    duration_ms double precision not null,
    ttft_ms double precision,
    tpot_ms double precision,
    status text not null,
    surface text not null,
    model text not null,
    response_id text,
    conversation_id text,
    attributes jsonb not null default '{}',
    primary key (tenant_id, id)
);
create index on traces (started_at desc);
create index on traces (tenant_id, response_id);

-- Times are microseconds from the start of the trace; `parent` is the ordinal of the enclosing span.
create table spans (
    tenant_id uuid not null,
    trace_id text not null,
    ordinal integer not null,
    parent integer,
    name text not null,
    lane text not null,
    start_us bigint not null,
    duration_us bigint not null,
    attributes jsonb not null default '{}',
    primary key (tenant_id, trace_id, ordinal),
    foreign key (tenant_id, trace_id) references traces on delete cascade
);

do $$
declare
    t text;
begin
    foreach t in array array['conversations', 'items', 'responses', 'response_events', 'files', 'vector_stores',
                             'vector_store_files', 'chunks', 'lexeme_counts', 'traces', 'spans', 'api_keys',
                             'sign_in_links']
    loop
        execute format('alter table %I enable row level security', t);
        execute format('create policy tenant on %I using (tenant_id = current_tenant())
                        with check (tenant_id = current_tenant())', t);
    end loop;
    -- Operators read every tenant's latencies, nothing else of theirs, and cannot write them.
    foreach t in array array['traces', 'spans'] loop
        execute format('create policy operator on %I for select using (is_operator())', t);
    end loop;
end
$$;

alter table tenants enable row level security;
create policy tenant on tenants for select using (id = current_tenant());

-- Authentication runs before a tenant is known. These functions are the only door: one exact hash in, one row out.
-- They run as the owner of the tables, whom row-level security does not bind; that is why it is not forced, and why
-- the worker refuses to serve as the owner.
create function authenticate_api_key(key_hash bytea)
    returns table (key_id text, tenant_id uuid, scopes text[], expires_at timestamptz)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update api_keys k
       set last_used_at = now()
     where k.hash = key_hash
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
 returning k.id, k.tenant_id, k.scopes, k.expires_at;
$$;

create function redeem_sign_in_link(link_hash bytea)
    returns table (tenant_id uuid, scopes text[])
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from sign_in_links l
     where l.hash = link_hash and l.expires_at > now()
 returning l.tenant_id, l.scopes;
$$;

-- A JWT names its tenant; the first token of a known issuer creates it.
create function ensure_tenant(tenant_name text) returns uuid
    language sql volatile security definer set search_path = public, pg_temp
as $$
    insert into tenants (name) values (tenant_name)
        on conflict (name) do update set name = excluded.name
    returning id;
$$;

revoke all on function authenticate_api_key(bytea), redeem_sign_in_link(bytea), ensure_tenant(text) from public;
grant execute on function authenticate_api_key(bytea), redeem_sign_in_link(bytea), ensure_tenant(text)
    to firsttoken_app;
grant usage on schema public to firsttoken_app;
grant select on tenants to firsttoken_app;
grant select, insert, update, delete on conversations, items, responses, response_events, files, vector_stores,
    vector_store_files, chunks, lexeme_counts, traces, spans, api_keys, sign_in_links to firsttoken_app;
