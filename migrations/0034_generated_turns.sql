-- The exact tokens of turns that models generated, by a digest of the turn: whichever worker continues a conversation
-- renders them as they were, and its prompt is found in the cache of the engine. They go with their response.
create table generated_turns (
    tenant_id uuid not null,
    digest bytea not null,
    response_id text not null,
    tokens bytea not null,  -- 32 bits each, little-endian
    primary key (tenant_id, digest),
    foreign key (tenant_id, response_id) references responses on delete cascade
);
create index on generated_turns (tenant_id, response_id);
alter table generated_turns enable row level security;
create policy tenant on generated_turns using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on generated_turns to firsttoken_app;
