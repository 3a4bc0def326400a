-- How often a file on its way into a store was begun: one that ends every worker that reads it is given up in the end.
-- And when last, so that tenants take turns: the files of one, however many and slow, do not hold up those of others.
alter table vector_store_files add column attempts integer not null default 0,
                               add column begun_at timestamptz;
create index on vector_store_files (tenant_id, begun_at desc) where begun_at is not null;

-- The oldest file that nobody reads, of the tenant whose last turn is longest ago; it is this worker's from now on.
create or replace function claim_file(reader bigint)
    returns table (tenant_id uuid, vector_store_id text, file_id text)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    with waiting as (
        select distinct w.tenant_id from vector_store_files w where w.status = 'in_progress'
    ), turns as (
        select w.tenant_id,
               (select max(b.begun_at) from vector_store_files b where b.tenant_id = w.tenant_id) as last_turn
          from waiting w
    )
    update vector_store_files v
       set worker = reader
     where (v.tenant_id, v.vector_store_id, v.file_id) = (
               select w.tenant_id, w.vector_store_id, w.file_id
                 from vector_store_files w join turns t on t.tenant_id = w.tenant_id
                where w.status = 'in_progress'
                  and (w.worker is null or w.worker = reader or not exists (
                          select from pg_locks l
                           where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                             and l.database = (select oid from pg_database where datname = current_database())
                             and (l.classid::bigint << 32 | l.objid::bigint) = w.worker))
                order by t.last_turn nulls first, w.created_at
                limit 1
                  for update of w skip locked)
 returning v.tenant_id, v.vector_store_id, v.file_id;
$$;
