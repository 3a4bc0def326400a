-- The files of a batch, each with how it ended in this batch: a file that is added again later is read again, also for
-- another batch. They stay when the file leaves the store. `vector_store_files.batch_id` is the batch that added it last.
create table batch_files (
    tenant_id uuid not null,
    vector_store_id text not null,
    batch_id text not null,
    file_id text not null,
    status text not null default 'in_progress' check (status in ('in_progress', 'completed', 'failed', 'cancelled')),
    created_at timestamptz not null default now(),
    primary key (tenant_id, vector_store_id, batch_id, file_id),
    foreign key (tenant_id, vector_store_id) references vector_stores on delete cascade
);
create index on batch_files (tenant_id, vector_store_id, file_id) where status = 'in_progress';

insert into batch_files (tenant_id, vector_store_id, batch_id, file_id, status, created_at)
select tenant_id, vector_store_id, batch_id, file_id, status, created_at
  from vector_store_files where batch_id is not null;

alter table batch_files enable row level security;
create policy tenant on batch_files using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on batch_files to firsttoken_app;
