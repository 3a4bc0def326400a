-- What measuring a hundred thousand chunks showed (benchmarks/README.md).

-- More links and a wider search for them: the index misses a third of what it missed before. Writing a chunk takes longer
-- by less than a tenth of what embedding it takes.
do $$
declare
    d integer;
begin
    foreach d in array array[384, 512, 768, 1024] loop
        execute format('drop index chunks_nearest_%1$s', d);
        execute format('create index chunks_nearest_%1$s on chunks using hnsw ((embedding::halfvec(%1$s)) '
                       'halfvec_ip_ops) with (m = 24, ef_construction = 200) where vector_dims(embedding) = %1$s', d);
    end loop;
end
$$;

-- A row that is too large keeps its vector and moves its text instead, which only the best are asked for. Rows that are
-- there stay as they are.
alter table chunks alter column embedding set storage main;

-- The lexemes as they stand in the index of store_terms, for each of the stores.
create function looked_up(stores text[], lexemes text[]) returns bigint[]
    language sql immutable parallel safe
as $$
    select array(select hashtextextended(lexeme, hashtextextended(store, 0))
                   from unnest(stores) as s(store) cross join unnest(lexemes) as l(lexeme));
$$;

-- As before, but of at most `hits_max` chunks that hold any of `lookups`, and as many that also hold any of `beside`.
-- Without a parallel worker, whose start takes ten times as long as the work, and without the setting that makes the
-- search around it follow its index.
drop function worded_chunks(text[], text[], tsquery[], float8[]);
create function worded_chunks(stores text[], lookups text[], beside text[], words tsquery[], weights float8[],
                              hits_max integer)
    returns table (vector_store_id text, file_id text, ordinal integer, weight float8)
    language sql stable security definer
    set search_path = public, pg_temp
    set max_parallel_workers_per_gather = 0
    set enable_sort = on
as $$
    with hits as materialized (
        (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, strip(c.lexemes) as lexemes
           from chunks c
          where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
          limit hits_max)
        union
        (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, strip(c.lexemes) as lexemes
           from chunks c
          where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
            and store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, beside)
          limit hits_max)
    )
    select h.vector_store_id, h.file_id, h.ordinal,
           (select sum(w.weight) from unnest(words, weights) as w(word, weight) where h.lexemes @@ w.word)
      from hits h
     where h.tenant_id = current_tenant() and h.vector_store_id = any(stores);
$$;

revoke all on function worded_chunks(text[], text[], text[], tsquery[], float8[], integer) from public;
grant execute on function worded_chunks(text[], text[], text[], tsquery[], float8[], integer) to firsttoken_app;
