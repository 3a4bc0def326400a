-- Files that callers send: kept in Postgres in pieces, so that any worker can read them and a backup has them.
alter table files add column purpose text not null default 'assistants',
                  add column uploaded boolean not null default false;
create index on files (tenant_id, created_at);

create table file_pieces (
    tenant_id uuid not null,
    file_id text not null,
    number integer not null,
    data bytea not null,
    primary key (tenant_id, file_id, number),
    foreign key (tenant_id, file_id) references files on delete cascade
);
-- What is sent is mostly compressed already.
alter table file_pieces alter column data set storage external;
alter table file_pieces enable row level security;
create policy tenant on file_pieces using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on file_pieces to firsttoken_app;

-- A file on its way into a store: `worker` is the one that reads it, by the number of its advisory lock.
alter table vector_store_files add column worker bigint,
                               add column error jsonb,
                               add column batch_id text;
create index on vector_store_files (created_at) where status = 'in_progress';
create index on vector_store_files (tenant_id, batch_id) where batch_id is not null;

-- The oldest file that nobody reads, across tenants; it is this worker's from now on.
create function claim_file(reader bigint) returns table (tenant_id uuid, vector_store_id text, file_id text)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update vector_store_files v
       set worker = reader
     where (v.tenant_id, v.vector_store_id, v.file_id) = (
               select w.tenant_id, w.vector_store_id, w.file_id
                 from vector_store_files w
                where w.status = 'in_progress'
                  and (w.worker = reader or not exists (
                          select from pg_locks l
                           where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                             and l.database = (select oid from pg_database where datname = current_database())
                             and (l.classid::bigint << 32 | l.objid::bigint) = w.worker))
                order by w.created_at
                limit 1
                  for update skip locked)
 returning v.tenant_id, v.vector_store_id, v.file_id;
$$;
revoke all on function claim_file(bigint) from public;
grant execute on function claim_file(bigint) to firsttoken_app;
