-- Requests that carried an Idempotency-Key, for a day. `response_id` is null for an answer that is not stored.
create table idempotency_keys (
    tenant_id uuid not null references tenants on delete cascade,
    key text not null check (length(key) between 1 and 255),
    fingerprint bytea not null,
    response_id text,
    worker bigint not null,  -- who was asked first
    answered boolean not null default false,
    created_at timestamptz not null default now(),
    primary key (tenant_id, key)
);
create index on idempotency_keys (created_at);

alter table idempotency_keys enable row level security;
create policy tenant on idempotency_keys using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on idempotency_keys to firsttoken_app;

-- A worker holds the advisory lock of its number for as long as it lives.
create function worker_lives(worker bigint) returns boolean
    language sql stable
as $$
    select exists (
        select from pg_locks l
         where l.locktype = 'advisory' and l.granted and l.objsubid = 1
           and l.database = (select oid from pg_database where datname = current_database())
           and (l.classid::bigint << 32 | l.objid::bigint) = worker);
$$;

create function forget_idempotency_keys(age interval) returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from idempotency_keys where created_at < now() - age;
$$;
revoke all on function forget_idempotency_keys(interval) from public;
grant execute on function forget_idempotency_keys(interval) to firsttoken_app;
