-- How many chunks a store has: every search wants to know, and to add it up over thousands of files takes longer than
-- an exact search of a small store. It moves in the transaction that moves the chunks.
alter table vector_stores add column chunks bigint not null default 0;
update vector_stores s
   set chunks = (select coalesce(sum(v.chunks), 0) from vector_store_files v
                  where v.tenant_id = s.tenant_id and v.vector_store_id = s.id);
