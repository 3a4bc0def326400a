-- Which worker sees to the responses of those that are gone, so that not all of them look for the same: one row.
create table janitor (
    only_row boolean primary key default true check (only_row),
    worker bigint not null,
    looked_at timestamptz not null
);
insert into janitor (worker, looked_at) values (0, '-infinity');

-- Whether the asker is the janitor from now on. It stays as long as it lives, unless it forgets its work.
create function be_janitor(asker bigint) returns boolean
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update janitor j set worker = asker, looked_at = now()
     where j.worker = asker
        or j.looked_at < now() - interval '30 seconds'
        or not exists (
               select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32 | l.objid::bigint) = j.worker)
    returning true;
$$;

-- What is in the hands of the worker that asks, and with `also_of_others` what is in those of workers that are gone.
drop function abandoned_responses(bigint);
create function abandoned_responses(asker bigint, also_of_others boolean)
    returns table (tenant_id uuid, id text, worker bigint)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select r.tenant_id, r.id, r.worker from responses r where r.worker = asker
    union all
    select r.tenant_id, r.id, r.worker
      from responses r
     where also_of_others and r.worker <> asker and not exists (
               select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32 | l.objid::bigint) = r.worker);
$$;
revoke all on function be_janitor(bigint), abandoned_responses(bigint, boolean) from public;
grant execute on function be_janitor(bigint), abandoned_responses(bigint, boolean) to firsttoken_app;
