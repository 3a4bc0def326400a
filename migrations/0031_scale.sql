-- What a far database costs an answer: what stands before it is read, its beginning stored, and the events of all tenants
-- kept in one round trip each. The caller's rights count in these functions, so row-level security holds; the tenant is
-- forgotten at the end of the transaction.
create function conversation_history(tenant uuid, wanted text, most integer) returns table (payload jsonb)
    language plpgsql volatile
as $$
begin
    perform set_config('app.tenant_id', tenant::text, true);
    return query
        select i.payload from conversations c
          left join lateral (
              select items.payload, items.position from items
               where items.tenant_id = c.tenant_id and items.conversation_id = c.id and items.chosen
               order by items.position limit most) i on true
         where c.tenant_id = tenant and c.id = wanted
         order by i.position;
end
$$;

-- All or nothing: raises no_data_found when one of them is in other hands.
create function begin_responses(tenant uuid, beginnings jsonb, maker bigint) returns void
    language plpgsql volatile
as $$
declare
    held integer;
begin
    perform set_config('app.tenant_id', tenant::text, true);
    with new as materialized (
             select * from jsonb_to_recordset(beginnings) as n (
                 id text, conversation_id text, previous_response_id text, status text, created_at timestamptz,
                 input jsonb, body jsonb)),
         begun as (
             insert into responses (tenant_id, id, conversation_id, previous_response_id, status, created_at, input,
                                    body, worker)
             select tenant, n.id, n.conversation_id, n.previous_response_id, n.status, n.created_at, n.input, n.body,
                    maker
               from new n on conflict do nothing returning id)
    select count(*) into held
      from (select b.id from begun b
             union all
            select r.id from responses r join new n on n.id = r.id where r.tenant_id = tenant and r.worker = maker) as h;
    if held < jsonb_array_length(beginnings) then
        raise no_data_found;
    end if;
end
$$;

-- All or nothing: raises no_data_found when one of the responses is not in these hands any more.
create function append_response_events(tenant uuid, batches jsonb, maker bigint) returns void
    language plpgsql volatile
as $$
declare
    held integer;
begin
    perform set_config('app.tenant_id', tenant::text, true);
    perform from responses r
      where r.tenant_id = tenant and r.worker = maker
        and r.id in (select b->>'id' from jsonb_array_elements(batches) b)
        for no key update;
    get diagnostics held = row_count;
    if held < jsonb_array_length(batches) then
        raise no_data_found;
    end if;
    insert into response_events (tenant_id, response_id, sequence_number, payload)
    select tenant, b->>'id', (b->>'number')::integer, b->'payload'
      from jsonb_array_elements(batches) b
     where jsonb_array_length(b->'payload'->'events') > 0
        on conflict do nothing;
    update responses set worker = null
     where tenant_id = tenant
       and id in (select b->>'id' from jsonb_array_elements(batches) b where (b->>'last')::boolean);
    perform pg_notify('firsttoken_responses', 'news ' || (b->>'id'))
       from jsonb_array_elements(batches) b where (b->>'told')::boolean;
end
$$;

-- Events and spans are kept by day, and forgotten by dropping a day: deleting them costs as much as writing them, and
-- leaves holes that the next rows do not fill evenly. What has no day of its own is kept beside.
alter table response_events rename to response_events_before;
create table response_events (
    tenant_id uuid not null,
    response_id text not null,
    sequence_number integer not null,
    payload jsonb not null,
    day date not null default (now() at time zone 'utc')::date,
    primary key (tenant_id, response_id, sequence_number, day),
    foreign key (tenant_id, response_id) references responses on delete cascade
) partition by range (day);

alter table spans rename to spans_before;
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
    day date not null default (now() at time zone 'utc')::date,
    primary key (tenant_id, trace_id, ordinal, day),
    foreign key (tenant_id, trace_id) references traces on delete cascade
) partition by range (day);

do $$
declare
    t text;
    name text;
begin
    foreach t in array array['response_events', 'spans'] loop
        execute format('create table %I partition of %I default', t || '_beside', t);
        for name in select * from unnest(array[t, t || '_beside']) loop
            execute format('alter table %I enable row level security', name);
            execute format('create policy tenant on %I using (tenant_id = current_tenant())
                            with check (tenant_id = current_tenant())', name);
        end loop;
        execute format('grant select, insert, update, delete on %I to firsttoken_app', t);
    end loop;
    create policy operator on spans for select using (is_operator());
end
$$;

-- Days that are to come, from today on: whoever writes finds its day there.
create function make_days(wanted integer) returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
declare
    t text;
    d date;
    name text;
begin
    set local lock_timeout = '500ms';  -- whoever writes waits behind this
    foreach t in array array['response_events', 'spans'] loop
        for d in select generate_series(0, wanted - 1) + (now() at time zone 'utc')::date loop
            name := format('%s_%s', t, to_char(d, 'YYYYMMDD'));
            continue when to_regclass(name) is not null;
            begin
                execute format('create table %I partition of %I for values from (%L) to (%L)', name, t, d, d + 1);
                execute format('alter table %I enable row level security', name);
                execute format('create policy tenant on %I using (tenant_id = current_tenant())
                                with check (tenant_id = current_tenant())', name);
            exception when check_violation or lock_not_available or duplicate_table or unique_violation then
                null;  -- rows of that day are kept beside, or somebody else does the same or is in the way: next time
            end;
        end loop;
    end loop;
end
$$;

-- Drop the days before this one.
create function drop_days(kept text, first_kept date) returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
declare
    name text;
begin
    if kept not in ('response_events', 'spans') then
        raise invalid_parameter_value;
    end if;
    set local lock_timeout = '500ms';  -- whoever writes waits behind this
    for name in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = kept::regclass and c.relname ~ ('^' || kept || '_[0-9]{8}$')
           and to_date(right(c.relname, 8), 'YYYYMMDD') < first_kept
    loop
        begin
            execute format('drop table %I', name);
        exception when lock_not_available then
            null;  -- next time
        end;
    end loop;
    execute format('delete from %I where day < $1', kept || '_beside') using first_kept;
end
$$;

-- A day goes when all that it has is older: an answer is made within it, or within the next one. Who keeps events for
-- less than a day has them deleted.
create or replace function forget_response_events(age interval) returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
begin
    perform make_days(3);
    perform drop_days('response_events', (now() at time zone 'utc' - age)::date);
    if age < interval '1 day' then
        delete from response_events e
         using responses r
         where r.tenant_id = e.tenant_id and r.id = e.response_id and r.completed_at < now() - age;
    end if;
end
$$;

create or replace function forget_traces(older_than interval, per_tenant integer) returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
begin
    perform make_days(3);
    perform drop_days('spans', (now() at time zone 'utc' - older_than)::date);
    delete from traces where started_at < now() - older_than;
    delete from traces t
     using (select tenants.id as tenant_id, cut.started_at
              from tenants
             cross join lateral (select r.started_at from traces r where r.tenant_id = tenants.id
                                  order by r.started_at desc offset per_tenant limit 1) as cut) as over
     where t.tenant_id = over.tenant_id and t.started_at <= over.started_at;
end
$$;

select make_days(3);
insert into response_events (tenant_id, response_id, sequence_number, payload)
select tenant_id, response_id, sequence_number, payload from response_events_before;
drop table response_events_before;
insert into spans (tenant_id, trace_id, ordinal, parent, name, lane, start_us, duration_us, attributes)
select tenant_id, trace_id, ordinal, parent, name, lane, start_us, duration_us, attributes from spans_before;
drop table spans_before;

revoke all on function conversation_history(uuid, text, integer), begin_responses(uuid, jsonb, bigint),
    append_response_events(uuid, jsonb, bigint), make_days(integer), drop_days(text, date) from public;
grant execute on function conversation_history(uuid, text, integer), begin_responses(uuid, jsonb, bigint),
    append_response_events(uuid, jsonb, bigint) to firsttoken_app;
