-- Responses that wait for a worker. A row here means that the response may be begun, also once more: it goes with the
-- first event of the answer, or with its end. What is asked stands in `responses.input`, the rest of the request here.
create table queued_responses (
    tenant_id uuid not null,
    response_id text not null,
    position bigint generated always as identity,
    class smallint not null,  -- 0 before 1 before 2
    request jsonb not null,
    caller jsonb not null,  -- who asked and how: {"via", "subject", "dialect"}, looked at again when it is begun
    attempts smallint not null default 0,
    taken boolean not null default false,
    primary key (tenant_id, response_id),
    foreign key (tenant_id, response_id) references responses on delete cascade
);
create index on queued_responses (class, position) where not taken;

alter table queued_responses enable row level security;
create policy tenant on queued_responses using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on queued_responses to firsttoken_app;

-- Across tenants: the next response that nobody makes, now made by this worker. Within a class, the tenant with the
-- fewest answers in progress comes first, so that nobody waits behind another one's hundred.
create function take_queued_response(taker bigint) returns table (tenant_id uuid, id text)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    with next as (
        select q.tenant_id, q.response_id
          from queued_responses q
         where not q.taken
         order by q.class,
                  (select count(*) from responses r where r.tenant_id = q.tenant_id and r.worker is not null),
                  q.position
         limit 1
           for update skip locked
    ), taken as (
        update queued_responses q
           set taken = true, attempts = q.attempts + 1
          from next
         where q.tenant_id = next.tenant_id and q.response_id = next.response_id
     returning q.tenant_id, q.response_id
    )
    update responses r
       set worker = taker
      from taken
     where r.tenant_id = taken.tenant_id and r.id = taken.response_id
 returning r.tenant_id, r.id;
$$;
revoke all on function take_queued_response(bigint) from public;
grant execute on function take_queued_response(bigint) to firsttoken_app;
