-- Items of a tenant by their ids: of conversations, and of the output of responses. Definer's rights, because a row policy
-- keeps the planner from the index on ids; the tenant is that of the session all the same.
create index responses_output_ids on responses using gin (jsonb_path_query_array(body, '$.output[*].id'));

create function stored_items(ids text[]) returns table (payload jsonb)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select i.payload
      from items i
     where i.tenant_id = current_tenant() and i.id = any(ids)
    union all
    select o.payload
      from responses r
     cross join lateral jsonb_array_elements(r.body->'output') as o(payload)
     where jsonb_path_query_array(r.body, '$.output[*].id') ?| ids
       and r.tenant_id = current_tenant()
       and o.payload->>'id' = any(ids);
$$;
revoke all on function stored_items(text[]) from public;
grant execute on function stored_items(text[]) to firsttoken_app;
