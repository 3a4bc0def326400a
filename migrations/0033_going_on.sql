-- Answers that go on at another worker when their own is gone: how many workers have made one.
alter table responses add column makers smallint not null default 1;

-- A worker says something every 15 seconds on the connection that holds its lock. One that has been silent for longer
-- stands still (it was stopped, or its machine is gone without a word): its connection is ended, and with it its lock,
-- so that what it held is seen to. Whatever it still writes comes too late, and it notices that.
create function end_silent_workers(age interval) returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
begin
    perform pg_terminate_backend(l.pid)
       from pg_locks l
       join pg_stat_activity a on a.pid = l.pid
      where l.locktype = 'advisory' and l.granted and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())
        and a.state = 'idle' and a.state_change < now() - age
        and exists (select from responses r where r.worker = (l.classid::bigint << 32 | l.objid::bigint));
exception when insufficient_privilege then
    null;  -- who migrated may not end connections of others: the server notices a dead machine by itself, later
end
$$;
revoke all on function end_silent_workers(interval) from public;
grant execute on function end_silent_workers(interval) to firsttoken_app;
