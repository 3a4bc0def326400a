-- Items of a conversation are a tree: each follows its parent, the position of another item or 0, and those that are chosen
-- are the path that the conversation is. Along a path positions grow, because only what is there can be followed.
alter table items add column parent bigint not null default 0,
                  add column chosen boolean not null default true;
update items i
   set parent = before.position
  from (select tenant_id, conversation_id, position as own,
               lag(position, 1, 0::bigint) over (partition by tenant_id, conversation_id order by position) as position
          from items) before
 where before.tenant_id = i.tenant_id and before.conversation_id = i.conversation_id and before.own = i.position;
create index on items (tenant_id, conversation_id, parent, position);
grant usage on sequence items_position_seq to firsttoken_app;
