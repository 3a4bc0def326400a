-- The words of messages, of every language alike. Nobody looks for what stands after twenty thousand characters, and a
-- tsvector has a size limit that a longer text could reach.
create function item_words(payload jsonb) returns tsvector
    language sql immutable parallel safe
as $$
    select to_tsvector('pg_catalog.simple', left(coalesce(string_agg(part->>'text', ' '), ''), 20000))
      from jsonb_array_elements(payload->'content') as part;
$$;

alter table items add column words tsvector
    generated always as (case when type = 'message' then item_words(payload) end) stored;
