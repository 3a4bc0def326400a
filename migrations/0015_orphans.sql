-- Which worker left a response behind, too: by the time that somebody sees to it, another one may be making it.
drop function abandoned_responses();
create function abandoned_responses() returns table (tenant_id uuid, id text, worker bigint)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select r.tenant_id, r.id, r.worker
      from responses r
     where r.worker is not null
       and not exists (
               select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32 | l.objid::bigint) = r.worker);
$$;
revoke all on function abandoned_responses() from public;
grant execute on function abandoned_responses() to firsttoken_app;
