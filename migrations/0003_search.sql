-- Search in large stores, which is by index; small ones are searched exactly (retrieval/store/search.py has the rule).

-- How many chunks a file has: files are written whole, and the size of what is searched decides how.
alter table vector_store_files add column chunks integer not null default 0;
update vector_store_files v
   set chunks = (select count(*) from chunks c
                  where c.tenant_id = v.tenant_id and c.vector_store_id = v.vector_store_id and c.file_id = v.file_id);

-- An index has one number of dimensions: these are the usual ones of small embedders, stores of others are searched
-- exactly. Row-level security leaves these indexes usable, since an order is no condition that could leak.
do $$
declare
    d integer;
begin
    foreach d in array array[384, 512, 768, 1024] loop
        execute format('create index chunks_nearest_%1$s on chunks using hnsw ((embedding::halfvec(%1$s)) '
                       'halfvec_ip_ops) where vector_dims(embedding) = %1$s', d);
    end loop;
end
$$;

-- A word of one store as a number: its postings are apart from those of every other store, so the words of a tenant
-- cost the same whoever else writes them. The cost tells the planner never to compute it for a row that it could find.
create function store_terms(store text, lexemes tsvector) returns bigint[]
    language sql immutable strict parallel safe cost 10000
as $$
    select array(select hashtextextended(lexeme, hashtextextended(store, 0))
                   from unnest(tsvector_to_array(lexemes)) as t(lexeme));
$$;

create index chunks_terms on chunks using gin (store_terms(vector_store_id, lexemes)) with (fastupdate = off);

-- The chunks of these stores that hold any of the lexemes, each with what the words in it weigh together. Neither full-text nor array
-- operators are leakproof, so row-level security would keep Postgres from using the index. This function runs as the
-- owner, whom it does not bind, and draws the tenant's wall itself.
create function worded_chunks(stores text[], lookups text[], words tsquery[], weights float8[])
    returns table (vector_store_id text, file_id text, ordinal integer, weight float8)
    language sql stable security definer set search_path = public, pg_temp
as $$
    with hits as materialized (
        select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, strip(c.lexemes) as lexemes
          from chunks c
         where store_terms(c.vector_store_id, c.lexemes) && array(
                   select hashtextextended(lexeme, hashtextextended(store, 0))
                     from unnest(stores) as s(store) cross join unnest(lookups) as l(lexeme))
    )
    select h.vector_store_id, h.file_id, h.ordinal,
           (select sum(w.weight) from unnest(words, weights) as w(word, weight) where h.lexemes @@ w.word)
      from hits h
     where h.tenant_id = current_tenant() and h.vector_store_id = any(stores);
$$;

revoke all on function worded_chunks(text[], text[], tsquery[], float8[]) from public;
grant execute on function worded_chunks(text[], text[], tsquery[], float8[]) to firsttoken_app;
