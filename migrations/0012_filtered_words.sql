-- As before, but where a filter allows some files alone, the hits are looked for among theirs: of at most `visits_max`
-- chunks that hold the words, `hits_max` that stand in an allowed file. Null for the files: all are allowed.
drop function worded_chunks(text[], text[], text[], tsquery[], float8[], integer);
create function worded_chunks(stores text[], lookups text[], beside text[], words tsquery[], weights float8[],
                              hits_max integer, visits_max integer, file_stores text[], files text[])
    returns table (vector_store_id text, file_id text, ordinal integer, weight float8)
    language sql stable security definer
    set search_path = public, pg_temp
    set max_parallel_workers_per_gather = 0
    set enable_sort = on
as $$
    with hits as materialized (
        (select m.tenant_id, m.vector_store_id, m.file_id, m.ordinal, strip(m.lexemes) as lexemes
           from (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, c.lexemes
                   from chunks c
                  where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
                  limit visits_max) as m
          where files is null or (m.vector_store_id, m.file_id) in (select * from unnest(file_stores, files))
          limit hits_max)
        union
        (select m.tenant_id, m.vector_store_id, m.file_id, m.ordinal, strip(m.lexemes) as lexemes
           from (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, c.lexemes
                   from chunks c
                  where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
                    and store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, beside)
                  limit visits_max) as m
          where files is null or (m.vector_store_id, m.file_id) in (select * from unnest(file_stores, files))
          limit hits_max)
    )
    select h.vector_store_id, h.file_id, h.ordinal,
           (select sum(w.weight) from unnest(words, weights) as w(word, weight) where h.lexemes @@ w.word)
      from hits h
     where h.tenant_id = current_tenant() and h.vector_store_id = any(stores);
$$;

revoke all on function worded_chunks(text[], text[], text[], tsquery[], float8[], integer, integer, text[], text[])
    from public;
grant execute on function worded_chunks(text[], text[], text[], tsquery[], float8[], integer, integer, text[], text[])
    to firsttoken_app;
