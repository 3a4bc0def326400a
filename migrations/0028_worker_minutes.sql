-- What each worker did by the minute: for operators alone, since it counts every tenant's work.
create table worker_minutes (
    at timestamptz not null,
    worker bigint not null,
    running real not null,
    waiting real not null,
    loop_lag_ms real not null,
    primary key (at, worker)
);
alter table worker_minutes enable row level security;
create policy operator on worker_minutes for select using (is_operator());
create policy worker on worker_minutes for insert with check (true);
grant select, insert on worker_minutes to firsttoken_app;

create or replace function forget_latency() returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from latency
     where (resolution_s = 60 and generation <> 0 and at < now() - interval '49 hours')
        or (resolution_s = 3600 and generation <> 0 and at < now() - interval '33 days')
        or (resolution_s = 86400 and at < now() - interval '400 days');
    delete from worker_minutes where at < now() - interval '33 days';
$$;
