-- Links by which anybody reads a conversation as it was when it was shared: up to the item at this position, on the path
-- that leads to it. Of the link only a hash is kept.
create table shared_conversations (
    tenant_id uuid not null,
    conversation_id text not null,
    hash bytea not null unique,
    last_position bigint not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, conversation_id),
    foreign key (tenant_id, conversation_id) references conversations on delete cascade
);
alter table shared_conversations enable row level security;
create policy tenant on shared_conversations using (tenant_id = current_tenant()) with check (tenant_id = current_tenant());
grant select, insert, update, delete on shared_conversations to firsttoken_app;

create function shared_conversation(link_hash bytea) returns table (tenant_id uuid, conversation_id text)
    language sql stable security definer set search_path = public, pg_temp
as $$
    select s.tenant_id, s.conversation_id from shared_conversations s where s.hash = link_hash;
$$;
revoke all on function shared_conversation(bytea) from public;
grant execute on function shared_conversation(bytea) to firsttoken_app;
