-- Latencies rolled up by minute, hour and day, so that a view over weeks reads as little as one over minutes.
--
-- A row is what one cell (tenant, surface, model, agent) did in one stretch of time. `measures` has 10 bytes for each
-- logarithmic bucket of each measure: the first 4 bytes of the MD5 of the measure's name, the number of the bucket and
-- its count, big-endian; what is added up instead of being spread over buckets, such as tokens, has the number 65535. A
-- bucket that occurs twice counts twice, so two rows are merged by appending one to the other, and percentiles of any
-- set of rows are those of all their values, to 1 %.
--
-- `generation` is 0 until a row is contained in one of the next coarser resolution; then it is a number of that roll-up.
-- What comes late starts a row of its own with 0, so nothing is ever lost or counted twice.
create table latency (
    tenant_id uuid not null references tenants on delete cascade,
    resolution_s integer not null check (resolution_s in (60, 3600, 86400)),
    at timestamptz not null,
    surface text collate "C" not null,
    model text collate "C" not null,
    agent text collate "C" not null,
    generation bigint not null default 0,
    measures bytea not null,
    primary key (resolution_s, at, tenant_id, surface, model, agent, generation)
) with (fillfactor = 70);
-- Compressing takes longer than reading what it saves.
alter table latency alter column measures set storage external;
create index latency_open on latency (resolution_s, at) where generation = 0;

-- The names behind the measures of spans: tools have names of their own.
create table span_names (
    tenant_id uuid not null references tenants on delete cascade,
    name text collate "C" not null,
    primary key (tenant_id, name)
);

do $$
declare
    t text;
begin
    foreach t in array array['latency', 'span_names'] loop
        execute format('alter table %I enable row level security', t);
        execute format('create policy tenant on %I using (tenant_id = current_tenant())
                        with check (tenant_id = current_tenant())', t);
        execute format('create policy operator on %I for select using (is_operator())', t);
    end loop;
end
$$;
grant select, insert, update on latency, span_names to firsttoken_app;

-- One value of one measure.
create function latency_entry(measure text, ms double precision) returns bytea
    language sql immutable parallel safe
    return decode(left(md5(measure), 8), 'hex')
        || int2send(least(1200, greatest(0, ceil(ln(greatest(ms, 0.001) / 0.001) / ln(1.02))))::smallint)
        || int4send(1);

-- Whole hours out of minutes, whole days out of hours. Of all tenants, also those who are silent by now. A count has room
-- for 24,000 tokens a second in one cell, all day.
create function roll_up_latency() returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
declare
    fine_s integer;
    coarse_s integer;
begin
    if not pg_try_advisory_xact_lock(hashtext('roll_up_latency')) then
        return;  -- another worker does it
    end if;
    foreach coarse_s in array array[3600, 86400] loop
        fine_s := case coarse_s when 3600 then 60 else 3600 end;
        with taken as materialized (
            update latency l
               set generation = pg_current_xact_id()::text::bigint
             where l.resolution_s = fine_s and l.generation = 0
               and l.at < to_timestamp(floor(extract(epoch from now()) / coarse_s) * coarse_s)
            returning l.tenant_id, to_timestamp(floor(extract(epoch from l.at) / coarse_s) * coarse_s) as at,
                      l.surface, l.model, l.agent, l.measures
        ), appended as (
            select tenant_id, at, surface, model, agent, string_agg(measures, '') as measures
              from taken group by tenant_id, at, surface, model, agent
        )
        insert into latency (tenant_id, resolution_s, at, surface, model, agent, measures)
        select tenant_id, coarse_s, at, surface, model, agent,
               (select coalesce(string_agg(key || int4send(least(count, 2147483647)::integer), ''), '')
                  from (select substr(measures, 10 * i + 1, 6) as key,
                               sum((get_byte(measures, 10 * i + 6)::bigint << 24) + (get_byte(measures, 10 * i + 7) << 16)
                                   + (get_byte(measures, 10 * i + 8) << 8) + get_byte(measures, 10 * i + 9)) as count
                          from generate_series(0, length(measures) / 10 - 1) as i
                         group by 1) as sums)
          from appended
            on conflict (resolution_s, at, tenant_id, surface, model, agent, generation)
            do update set measures = latency.measures || excluded.measures;
    end loop;
end
$$;

-- A minute is of interest for two days, an hour for a month, a day for a year.
create function forget_latency() returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from latency
     where (resolution_s = 60 and generation <> 0 and at < now() - interval '49 hours')
        or (resolution_s = 3600 and generation <> 0 and at < now() - interval '33 days')
        or (resolution_s = 86400 and at < now() - interval '400 days');
$$;

-- What the list of answers is filtered, searched and told apart by.
alter table traces
    add column agent text not null default '',
    add column prompt_tokens integer,
    add column cached_tokens integer,
    add column output_tokens integer;
create index on traces (tenant_id, started_at desc);
create index on traces (response_id);
create index on traces (conversation_id);
create index traces_id on traces (id collate "C");

-- By age, and by number: of each tenant the newest are kept.
create function forget_traces(older_than interval, per_tenant integer) returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from traces where started_at < now() - older_than;
    delete from traces t
     using (select tenants.id as tenant_id, cut.started_at
              from tenants
             cross join lateral (select r.started_at from traces r where r.tenant_id = tenants.id
                                  order by r.started_at desc offset per_tenant limit 1) as cut) as over
     where t.tenant_id = over.tenant_id and t.started_at <= over.started_at;
$$;

do $$
declare
    f text;
begin
    foreach f in array array['roll_up_latency()', 'forget_latency()', 'forget_traces(interval, integer)']
    loop
        execute format('revoke all on function %s from public', f);
        execute format('grant execute on function %s to firsttoken_app', f);
    end loop;
end
$$;

-- What is known already, so that the page does not begin with an empty past.
with facts as (
    select t.tenant_id, t.id, t.surface, t.model, t.response_id is not null as answer, t.duration_ms, t.ttft_ms, t.tpot_ms,
           t.status, t.within_target, resolution_s,
           to_timestamp(floor(extract(epoch from t.started_at) / resolution_s) * resolution_s) as at
      from traces t
     cross join lateral (select case when t.started_at > now() - interval '48 hours' then 60 else 3600 end) as r(resolution_s)
), measured as (
    select tenant_id, resolution_s, at, surface, model, latency_entry(m.measure, m.ms) as entry
      from facts
     cross join lateral (values (case when answer then 'duration' else 'call' end, duration_ms),
                                ('ttft', case when answer then ttft_ms end),
                                ('tpot', case when answer then tpot_ms end)) as m(measure, ms)
     where m.ms is not null
    union all
    select tenant_id, resolution_s, at, surface, model, decode(left(md5(m.measure), 8), 'hex') || '\xffff00000001'
      from facts
     cross join lateral (values ('status:' || status), (case when within_target is not null then 'judged' end),
                                (case when within_target then 'within' end)) as m(measure)
     where answer and m.measure is not null
    union all
    select f.tenant_id, f.resolution_s, f.at, f.surface, f.model,
           latency_entry('span:' || s.name, sum(s.duration_us) / 1000.0)
      from facts f join spans s on s.tenant_id = f.tenant_id and s.trace_id = f.id
     group by f.tenant_id, f.id, f.resolution_s, f.at, f.surface, f.model, s.name
)
insert into latency (tenant_id, resolution_s, at, surface, model, agent, measures)
select tenant_id, resolution_s, at, surface, model, '', string_agg(entry, '')
  from measured
 group by tenant_id, resolution_s, at, surface, model;

insert into span_names select distinct tenant_id, name from spans;

select roll_up_latency();
