-- Responses while they are made: any worker can follow them, stop them, and end them when their own worker is gone.

-- The worker that makes the answer; null once its last event is stored. A worker holds the advisory lock of its number
-- for as long as its session lives, so one that was killed is known as soon as the server notices: no lease to renew.
alter table responses add column worker bigint;
create index on responses (worker) where worker is not null;

-- A row of response_events is a batch: `payload.events` are the events, `sequence_number` that of the last one.

-- Across tenants: which responses nobody is making any more.
create function abandoned_responses() returns table (tenant_id uuid, id text)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select r.tenant_id, r.id
      from responses r
     where r.worker is not null
       and not exists (
               select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                  and l.database = (select oid from pg_database where datname = current_database())
                  and (l.classid::bigint << 32 | l.objid::bigint) = r.worker);
$$;

create function forget_response_events(age interval) returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from response_events e
     using responses r
     where r.tenant_id = e.tenant_id and r.id = e.response_id and r.completed_at < now() - age;
$$;

revoke all on function abandoned_responses(), forget_response_events(interval) from public;
grant execute on function abandoned_responses(), forget_response_events(interval) to firsttoken_app;
