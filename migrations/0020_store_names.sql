-- Stores may have the same name: ids tell them apart. By a name, the oldest store of that name is found.
alter table vector_stores drop constraint vector_stores_tenant_id_name_key;
create index on vector_stores (tenant_id, name, created_at);
