-- Shares of conversations that another agent answers, and what became of them. An operator's, and nothing of tenants is
-- in it: a conversation is a keyed digest.
create table canaries (
    id uuid primary key default gen_random_uuid(),
    name text collate "C" not null unique,
    agent text collate "C" not null,
    treatment text collate "C" not null,
    share real not null check (share > 0 and share < 1),
    margins jsonb not null default '{}',
    state text not null default 'running' check (state in ('running', 'promoted', 'rolled_back', 'aborted')),
    reason text not null default '',
    started_at timestamptz not null default now(),
    ended_at timestamptz
);
-- What is promoted answers all conversations of its agent until the agent itself is changed.
create unique index canaries_live on canaries (agent) where state in ('running', 'promoted');

create table canary_answers (
    canary_id uuid not null references canaries on delete cascade,
    unit bytea not null check (length(unit) = 8),
    position bigint generated always as identity,
    treated boolean not null,
    failed boolean not null,
    late boolean,
    ttft_ms real,
    tpot_ms real,
    tokens integer not null,
    primary key (canary_id, unit)
);
create index on canary_answers (canary_id, position);

alter table canaries enable row level security;
alter table canary_answers enable row level security;
create policy worker on canaries using (true) with check (true);
create policy worker on canary_answers using (true) with check (true);
grant select, insert, update on canaries to firsttoken_app;
grant select, insert on canary_answers to firsttoken_app;
