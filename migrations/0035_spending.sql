-- What answers took and what they cost, by the hour, for a year; of a key also for its budget of the day. Milliseconds are
-- those of an engine (of which speculation_ms were no use) and of tools.
create table spending (
    tenant_id uuid not null references tenants on delete cascade,
    at timestamptz not null,
    key_id text collate "C" not null,
    surface text collate "C" not null,
    model text collate "C" not null,
    agent text collate "C" not null,
    answers bigint not null,
    cost double precision not null,
    engine_ms double precision not null,
    speculation_ms double precision not null,
    tool_ms double precision not null,
    primary key (tenant_id, at, key_id, surface, model, agent)
) with (fillfactor = 70);
create index on spending (at);
create index on spending (tenant_id, key_id, at) where key_id <> '';

alter table spending enable row level security;
create policy tenant on spending using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
create policy operator on spending for select using (is_operator());
grant select, insert, update on spending to firsttoken_app;

create function forget_spending() returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from spending where at < now() - interval '400 days';
$$;
revoke all on function forget_spending() from public;
grant execute on function forget_spending() to firsttoken_app;
