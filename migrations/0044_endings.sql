-- The ends of answers that come together are stored in one round trip. All or nothing: raises no_data_found when one of
-- the responses is not in these hands any more, or something was said to it, which then has to be taken over.
--
-- Ends and events are stored at the same time, each for several responses of a worker: both lock these in the same order,
-- or they would wait for each other.
create function end_responses(tenant uuid, endings jsonb, maker bigint) returns void
    language plpgsql volatile
as $$
declare
    held integer;
begin
    perform set_config('app.tenant_id', tenant::text, true);
    perform from responses r
      where r.tenant_id = tenant and r.worker = maker and not r.body ? 'firsttoken_successor'
        and r.id in (select e->>'id' from jsonb_array_elements(endings) e)
      order by r.id for no key update;
    get diagnostics held = row_count;
    if held < jsonb_array_length(endings) then
        raise no_data_found;
    end if;
    update responses r set status = e.status, completed_at = e.completed_at, body = e.body
      from jsonb_to_recordset(endings) as e (id text, status text, completed_at timestamptz, body jsonb)
     where r.tenant_id = tenant and r.id = e.id;
    insert into response_events (tenant_id, response_id, sequence_number, payload)
    select tenant, e.id, e.number, e.payload
      from jsonb_to_recordset(endings) as e (id text, number integer, payload jsonb)
     where jsonb_array_length(e.payload->'events') > 0
        on conflict do nothing;
    insert into generated_turns (tenant_id, digest, response_id, tokens)
    select tenant, decode(t.digest, 'hex'), e.id, decode(t.tokens, 'hex')
      from jsonb_to_recordset(endings) as e (id text, turns jsonb),
           jsonb_to_recordset(e.turns) as t (digest text, tokens text)
     order by t.digest
        on conflict do nothing;
end
$$;
revoke all on function end_responses(uuid, jsonb, bigint) from public;
grant execute on function end_responses(uuid, jsonb, bigint) to firsttoken_app;

create or replace function append_response_events(tenant uuid, batches jsonb, maker bigint) returns void
    language plpgsql volatile
as $$
declare
    held integer;
begin
    perform set_config('app.tenant_id', tenant::text, true);
    perform from responses r
      where r.tenant_id = tenant and r.worker = maker
        and r.id in (select b->>'id' from jsonb_array_elements(batches) b)
      order by r.id for no key update;
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
