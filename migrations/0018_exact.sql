-- Which request claimed the key: whoever gives it back, however late, takes it from no other one.
alter table idempotency_keys add column claim uuid not null default gen_random_uuid();

-- Also what is in the hands of the worker that asks: it may know nothing of it, when an answer of the database was lost.
drop function abandoned_responses();
create function abandoned_responses(asker bigint) returns table (tenant_id uuid, id text, worker bigint)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select r.tenant_id, r.id, r.worker
      from responses r
     where r.worker is not null
       and (r.worker = asker or not exists (
               select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32 | l.objid::bigint) = r.worker));
$$;
revoke all on function abandoned_responses(bigint) from public;
grant execute on function abandoned_responses(bigint) to firsttoken_app;
