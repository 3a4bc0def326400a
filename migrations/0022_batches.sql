-- Batches: files of requests that are answered when there is time. `worker` is the one that checks the input or writes
-- the output, by the number of its advisory lock.
create table batches (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null,
    status text not null default 'validating'
        check (status in ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling',
                          'cancelled')),
    endpoint text not null,
    input_file_id text not null,
    output_file_id text,
    error_file_id text,
    completion_window text not null,
    metadata jsonb,
    model text,
    errors jsonb not null default '[]',
    total integer not null default 0,
    completed integer not null default 0,
    failed integer not null default 0,
    input_tokens bigint not null default 0,
    cached_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    reasoning_tokens bigint not null default 0,
    caller jsonb not null,  -- who asked: {"via", "subject"}, looked at again for each line
    worker bigint,
    attempts smallint not null default 0,  -- to check the input
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    in_progress_at timestamptz,
    finalizing_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    expired_at timestamptz,
    cancelling_at timestamptz,
    cancelled_at timestamptz,
    primary key (tenant_id, id)
);
create index on batches (tenant_id, created_at);
create index on batches (created_at) where status in ('validating', 'in_progress', 'finalizing', 'cancelling');

-- The lines of batches that are not over. One that is being answered is in the hands of a place of a worker; one with
-- an answer is begun no more.
create table batch_lines (
    tenant_id uuid not null,
    batch_id text not null,
    number integer not null,  -- in the input file, from 1
    custom_id text not null,
    request bytea not null,
    worker bigint,
    place smallint,
    attempts smallint not null default 0,
    begun_at timestamptz,
    answer bytea,  -- the line of the output
    succeeded boolean,
    primary key (tenant_id, batch_id, number),
    foreign key (tenant_id, batch_id) references batches on delete cascade
);
alter table batch_lines alter column answer set storage external;  -- written once, read once
create index on batch_lines (tenant_id, batch_id, number) where answer is null;
create index on batch_lines (tenant_id) where worker is not null;
create index on batch_lines (tenant_id, batch_id, begun_at) where begun_at is not null;

alter table batches enable row level security;
create policy tenant on batches using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on batches to firsttoken_app;
alter table batch_lines enable row level security;
create policy tenant on batch_lines using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on batch_lines to firsttoken_app;

-- Across tenants: a batch whose input is to be checked, or whose output is to be written. It is this worker's now.
create function claim_batch(taker bigint) returns table (tenant_id uuid, id text)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update batches b
       set worker = taker, attempts = b.attempts + (b.status = 'validating')::integer
     where (b.tenant_id, b.id) = (
               select c.tenant_id, c.id
                 from batches c
                where (c.status in ('validating', 'finalizing', 'cancelling')
                       or c.status = 'in_progress' and (c.completed + c.failed >= c.total or c.expires_at <= now()))
                  and (c.worker is null or c.worker = taker or not worker_lives(c.worker))
                order by c.status = 'validating', c.created_at
                limit 1
                  for update skip locked)
 returning b.tenant_id, b.id;
$$;
revoke all on function claim_batch(bigint) from public;
grant execute on function claim_batch(bigint) to firsttoken_app;

-- Across tenants: a line that nobody answers, now in the hands of this place of the worker. First comes the tenant with
-- the fewest lines in progress, then the one whose last turn is longest ago, with its batch that has waited longest. A
-- place has one line: what it holds already was given to it in an answer that it did not hear. Only lines are locked, as
-- the answer to a line locks its batch before the line.
create function claim_batch_line(taker bigint, at_place smallint)
    returns table (tenant_id uuid, batch_id text, number integer)
    language plpgsql volatile security definer set search_path = public, pg_temp
as $$
#variable_conflict use_column
declare
    open record;
    line integer;
begin
    for open in
        with last as (
            select b.tenant_id, b.id, b.created_at,
                   (select max(l.begun_at) from batch_lines l where l.tenant_id = b.tenant_id and l.batch_id = b.id)
                       as turn
              from batches b
             where b.status = 'in_progress' and b.completed + b.failed < b.total and b.expires_at > now()
        )
        select b.tenant_id, b.id
          from last b
         order by (select count(*) from batch_lines l where l.tenant_id = b.tenant_id and l.worker is not null),
                  max(b.turn) over (partition by b.tenant_id) nulls first, b.turn nulls first, b.created_at
    loop
        select l.number into line
          from batch_lines l
         where l.tenant_id = open.tenant_id and l.batch_id = open.id and l.answer is null
           and (l.worker is null or l.worker = taker and l.place = at_place or not worker_lives(l.worker))
         order by l.number
         limit 1
           for update skip locked;
        if found then
            update batch_lines l
               set worker = taker, place = at_place, attempts = l.attempts + 1, begun_at = clock_timestamp()
             where l.tenant_id = open.tenant_id and l.batch_id = open.id and l.number = line;
            return query select open.tenant_id, open.id, line;
            return;
        end if;
    end loop;
end
$$;
revoke all on function claim_batch_line(bigint, smallint) from public;
grant execute on function claim_batch_line(bigint, smallint) to firsttoken_app;
