-- Candidates from two sides: nearest by meaning, and richest in the query's telling words. Each row brings both evidences.
--
--   $1 tenant   $2 ids of vector stores   $3 query   $4 its unit vector, or null   $5 rows a side   $6 words at most
--   $7 chunks in these stores   $8 hits to look at   $9 phrases of the query   $10... values of the filter
--
-- In braces stands what search.py chooses among its own texts: how the nearest are found, and those with the words, and
-- the filter.
--
-- Words are weighed by how rare they are in these stores (ts_rank knows no rarity, and fusing it hurts). A word in more
-- than a fifth of the chunks tells nothing, but in a store of a few chunks every word is in a fifth: hence at least 10.
-- A word that no chunk has counts in query_weight alone: a question about something else covers little of itself.
-- Identifiers and phrases also count apart, as exact_weight. A phrase weighs as much as its words, by which it is found.
-- Chunks are looked up by the rarest words until enough are found; the other words then only add to their weight. If even
-- the rarest has too many, those that hold another one beside it are looked up too.
with words as materialized (
    -- lexeme -> tsquery by quoting: to_tsquery would take it apart again
    select w.lexeme, w.exact, ('''' || replace(replace(w.lexeme, '\', '\\'), '''', '''''') || '''')::tsquery as word,
           counted.chunks, ln(1 + (greatest($7 - counted.chunks, 0) + 0.5) / (counted.chunks + 0.5)) as idf
      from (select lexeme, weights && '{{A, B}}' as exact from unnest(search_lexemes($3))
             order by exact desc, lexeme limit $6) as w
     cross join lateral (
        select coalesce(sum(l.chunks), 0)::float8 as chunks from lexeme_counts l
         where l.tenant_id = $1 and l.vector_store_id = any($2) and l.lexeme = w.lexeme) as counted
), telling as materialized (
    select lexeme, word, exact, idf, sum(chunks) over rarest_first as hits, row_number() over rarest_first as rarity
      from words
     where chunks > 0 and chunks <= greatest(10, $7::float8 / 5)
    window rarest_first as (order by chunks, lexeme)
), weighty as materialized (
    select word, exact, idf, true as in_query from telling
     union all
    select phrase, true,
           (select sum(idf) from words where lexeme = any(tsvector_to_array(to_tsvector('english', quoted)))), false
      from unnest($9::text[]) as q(quoted) cross join lateral phraseto_tsquery('english', quoted) as phrase
     where numnode(phrase) > 1
), allowed as materialized (
    select vector_store_id, file_id from vector_store_files
     where tenant_id = $1 and vector_store_id = any($2) and {filter}
), nearest as (
    select vector_store_id, file_id, ordinal from {searched}
       and $4::real[] is not null
     order by {distance}
     limit $5
), lookup as materialized (
    select array_agg(lexeme) filter (where hits <= $8 or rarity = 1) as lookups,
           case when min(hits) > $8 then array_agg(lexeme) filter (where rarity > 1) end as beside,
           (select array_agg(word) from weighty) as words, (select array_agg(idf) from weighty) as weights
      from telling
), worded as (
    select vector_store_id, file_id, ordinal from {weighed}
     where weight > 0
     order by weight desc, vector_store_id, file_id, ordinal
     limit $5
), found as (
    select * from nearest union select * from worded
)
select c.vector_store_id, c.file_id, c.ordinal, c.start_char, c.end_char,
       -(c.embedding <#> $4::real[]::halfvec) as cosine,
       coalesce(weighed.weight, 0) as weight, coalesce(weighed.exact_weight, 0) as exact_weight,
       (select sum(idf) from words) as query_weight
  from found
  join chunks c using (vector_store_id, file_id, ordinal)
 cross join lateral (select c.lexemes || '' as lexemes offset 0) as once  -- unpacked once, not for every word
 cross join lateral (
    select sum(idf) filter (where held > 0 and in_query) as weight, sum(held) filter (where exact) as exact_weight
      from (select exact, in_query, idf, idf * word_weight(once.lexemes, word) as held from weighty) as each_one) as weighed
 where c.tenant_id = $1
