-- The ends of answers that come together are stored in one round trip. All or nothing: raises no_data_found when one of
-- the responses is not in these hands any more, or something was said to it, which then has to be taken over.
create function end_responses(tenant uuid, endings jsonb, maker bigint) returns void
    language plpgsql volatile
as $$
declare
    held integer;
begin
    perform set_config('app.tenant_id', tenant::text, true);
    update responses r set status = e.status, completed_at = e.completed_at, body = e.body
      from jsonb_to_recordset(endings) as e (id text, status text, completed_at timestamptz, body jsonb)
     where r.tenant_id = tenant and r.id = e.id and r.worker = maker and not r.body ? 'firsttoken_successor';
    get diagnostics held = row_count;
    if held < jsonb_array_length(endings) then
        raise no_data_found;
    end if;
    insert into response_events (tenant_id, response_id, sequence_number, payload)
    select tenant, e.id, e.number, e.payload
      from jsonb_to_recordset(endings) as e (id text, number integer, payload jsonb)
     where jsonb_array_length(e.payload->'events') > 0
        on conflict do nothing;
    insert into generated_turns (tenant_id, digest, response_id, tokens)
    select tenant, decode(t.digest, 'hex'), e.id, decode(t.tokens, 'hex')
      from jsonb_to_recordset(endings) as e (id text, turns jsonb),
           jsonb_to_recordset(e.turns) as t (digest text, tokens text)
        on conflict do nothing;
end
$$;
revoke all on function end_responses(uuid, jsonb, bigint) from public;
grant execute on function end_responses(uuid, jsonb, bigint) to firsttoken_app;
