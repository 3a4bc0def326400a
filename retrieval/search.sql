-- Candidates from two sides: nearest by meaning, and richest in the query's telling words. Each row brings both evidences.
--
--   $1 tenant   $2 ids of vector stores   $3 query   $4 its unit vector, or null   $5 rows a side   $6 words at most
--
-- Words are weighed by how rare they are in these stores (ts_rank knows no rarity, and fusing it hurts). A word in more
-- than a fifth of the chunks tells nothing, but in a store of a few chunks every word is in a fifth: hence at least 10.
-- A word that no chunk has counts in query_weight alone: a question about something else covers little of itself.
--
-- Full-text operators are not leakproof, so under row-level security Postgres reads all chunks of the stores instead of
-- using a text index; that costs about as much as the exact vector scan beside it. The `+ 0` keeps that one exact.
with total as materialized (
    select count(*)::float8 as chunks from chunks where tenant_id = $1 and vector_store_id = any($2)
), words as materialized (
    -- lexeme -> tsquery by quoting: to_tsquery would take it apart again
    select ('''' || replace(replace(w.lexeme, '\', '\\'), '''', '''''') || '''')::tsquery as word, counted.chunks,
           ln(1 + (greatest(total.chunks - counted.chunks, 0) + 0.5) / (counted.chunks + 0.5)) as idf
      from (select lexeme from unnest(tsvector_to_array(to_tsvector('english', $3))) as t(lexeme) limit $6) as w
     cross join total
     cross join lateral (
        select coalesce(sum(l.chunks), 0)::float8 as chunks from lexeme_counts l
         where l.tenant_id = $1 and l.vector_store_id = any($2) and l.lexeme = w.lexeme) as counted
), telling as materialized (
    select word, idf from words, total where words.chunks > 0 and words.chunks <= greatest(10, total.chunks / 5)
), nearest as (
    select vector_store_id, file_id, ordinal from chunks
     where tenant_id = $1 and vector_store_id = any($2) and $4::real[] is not null
     order by (embedding <#> $4::real[]::halfvec) + 0
     limit $5
), worded as (
    select vector_store_id, file_id, ordinal from chunks c
     where tenant_id = $1 and vector_store_id = any($2)
       and lexemes @@ (select string_agg(word::text, ' | ')::tsquery from telling)
     order by (select sum(idf) from telling where c.lexemes @@ word) desc
     limit $5
), found as (
    select * from nearest union select * from worded
)
select c.vector_store_id, c.file_id, c.ordinal, f.filename, f.title, c.heading, c.text, c.start_char, c.end_char,
       c.tokens, -(c.embedding <#> $4::real[]::halfvec) as cosine,
       coalesce((select sum(idf) from telling where c.lexemes @@ word), 0) as weight,
       (select sum(idf) from words) as query_weight
  from found
  join chunks c using (vector_store_id, file_id, ordinal)
  join files f on f.tenant_id = c.tenant_id and f.id = c.file_id
 where c.tenant_id = $1
