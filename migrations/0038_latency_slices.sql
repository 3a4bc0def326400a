-- Latencies by what one asks for less often than for everything: key, worker, status, cache and length of the prompt. In a
-- table of its own, so that who asks for everything does not read the parts. `measures` and `generation` are those of
-- latency. Rows are only added: of one cell there may be several, since their measures are appended to each other anyway.
create table latency_slices (
    tenant_id uuid not null references tenants on delete cascade,
    resolution_s integer not null check (resolution_s in (60, 3600, 86400)),
    at timestamptz not null,
    surface text collate "C" not null,
    model text collate "C" not null,
    agent text collate "C" not null,
    key_id text collate "C" not null,
    worker text collate "C" not null,
    status text collate "C" not null,
    cache text collate "C" not null,
    length text collate "C" not null,
    generation bigint not null default 0,
    measures bytea not null
);
alter table latency_slices alter column measures set storage external;
create index on latency_slices (resolution_s, at);
create index on latency_slices (resolution_s, at) where generation = 0;

alter table latency_slices enable row level security;
create policy tenant on latency_slices using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
create policy operator on latency_slices for select using (is_operator());
grant select, insert on latency_slices to firsttoken_app;

-- The same with every bucket once. What is short has hardly a bucket twice, and costs more to look through than to keep.
create function latency_compacted(measures bytea) returns bytea
    language sql immutable parallel safe
    return case when length(measures) < 4000 then measures else
        (select coalesce(string_agg(key || int4send(least(count, 2147483647)::integer), ''), '')
           from (select substr(measures, 10 * i + 1, 6) as key,
                        sum((get_byte(measures, 10 * i + 6)::bigint << 24) + (get_byte(measures, 10 * i + 7) << 16)
                            + (get_byte(measures, 10 * i + 8) << 8) + get_byte(measures, 10 * i + 9)) as count
                   from generate_series(0, length(measures) / 10 - 1) as i
                  group by 1) as sums) end;

-- As roll_up_latency().
create function roll_up_latency_slices() returns void
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
declare
    fine_s integer;
    coarse_s integer;
begin
    if not pg_try_advisory_xact_lock(hashtext('roll_up_latency_slices')) then
        return;  -- another worker does it
    end if;
    foreach coarse_s in array array[3600, 86400] loop
        fine_s := case coarse_s when 3600 then 60 else 3600 end;
        with taken as materialized (
            update latency_slices l
               set generation = pg_current_xact_id()::text::bigint
             where l.resolution_s = fine_s and l.generation = 0
               and l.at < to_timestamp(floor(extract(epoch from now()) / coarse_s) * coarse_s)
            returning l.*
        )
        insert into latency_slices (tenant_id, resolution_s, at, surface, model, agent, key_id, worker, status, cache,
                                    length, measures)
        select tenant_id, coarse_s, to_timestamp(floor(extract(epoch from at) / coarse_s) * coarse_s), surface, model,
               agent, key_id, worker, status, cache, length, latency_compacted(string_agg(measures, ''))
          from taken
         group by tenant_id, 3, surface, model, agent, key_id, worker, status, cache, length;
    end loop;
end
$$;
revoke all on function roll_up_latency_slices() from public;
grant execute on function roll_up_latency_slices() to firsttoken_app;

-- A minute is of interest for two days, an hour for a month, a day for a year; of slices all for a month.
create or replace function forget_latency() returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from latency
     where (resolution_s = 60 and generation <> 0 and at < now() - interval '49 hours')
        or (resolution_s = 3600 and generation <> 0 and at < now() - interval '33 days')
        or (resolution_s = 86400 and at < now() - interval '400 days');
    delete from latency_slices
     where (resolution_s = 60 and generation <> 0 and at < now() - interval '49 hours')
        or (resolution_s = 3600 and generation <> 0 and at < now() - interval '33 days')
        or (resolution_s = 86400 and at < now() - interval '33 days');
    delete from worker_minutes where at < now() - interval '33 days';
$$;

-- The list of answers is narrowed by the same.
alter table traces
    add column key_id text collate "C" not null default '',
    add column worker text collate "C" not null default '';
update traces set key_id = attributes->>'firsttoken.key' where attributes ? 'firsttoken.key';
create index on traces (key_id, started_at desc) where key_id <> '';

-- What is known already, so that slices do not begin with an empty past.
with facts as (
    select t.tenant_id, t.id, t.surface, t.model, t.agent, t.key_id, t.response_id is not null as answer, t.duration_ms,
           t.ttft_ms, t.tpot_ms, t.status as ended, t.within_target, t.prompt_tokens, t.cached_tokens, t.output_tokens,
           case when t.status = 'completed' and not t.within_target then 'late' else t.status end as status,
           case when coalesce(t.prompt_tokens, 0) = 0 then '' when t.cached_tokens = 0 then 'miss'
                when t.cached_tokens >= 0.9 * t.prompt_tokens then 'hit' else 'partial' end as cache,
           case when coalesce(t.prompt_tokens, 0) = 0 then '' when t.prompt_tokens < 512 then 'short'
                when t.prompt_tokens < 2048 then 'medium' when t.prompt_tokens < 8192 then 'long' else 'huge' end as length,
           resolution_s, to_timestamp(floor(extract(epoch from t.started_at) / resolution_s) * resolution_s) as at
      from traces t
     cross join lateral (select case when t.started_at > now() - interval '48 hours' then 60 else 3600 end) as r(resolution_s)
     where t.started_at > now() - interval '32 days'
), measured as (
    select f.tenant_id, f.id, latency_entry(m.measure, m.ms) as entry
      from facts f
     cross join lateral (values (case when answer then 'duration' else 'call' end, duration_ms),
                                ('ttft', case when answer then ttft_ms end),
                                ('tpot', case when answer then tpot_ms end)) as m(measure, ms)
     where m.ms is not null
    union all
    select f.tenant_id, f.id, decode(left(md5(m.measure), 8), 'hex') || '\xffff' || int4send(m.amount)
      from facts f
     cross join lateral (values ('status:' || ended, 1), ('judged', (within_target is not null)::integer),
                                ('within', within_target::integer), ('prompt_tokens', prompt_tokens),
                                ('cached_tokens', cached_tokens), ('output_tokens', output_tokens)) as m(measure, amount)
     where answer and m.amount > 0
    union all
    select f.tenant_id, f.id, latency_entry('span:' || s.name, sum(s.duration_us) / 1000.0)
      from facts f join spans s on s.tenant_id = f.tenant_id and s.trace_id = f.id
     group by f.tenant_id, f.id, s.name
), pieces as (
    select tenant_id, id, string_agg(entry, '') as measures from measured group by tenant_id, id
)
insert into latency_slices (tenant_id, resolution_s, at, surface, model, agent, key_id, worker, status, cache, length, measures)
select tenant_id, resolution_s, at, surface, model, agent, key_id, '', status, cache, length, string_agg(measures, '')
  from facts join pieces using (tenant_id, id)
 group by tenant_id, resolution_s, at, surface, model, agent, key_id, status, cache, length;

select roll_up_latency_slices();
