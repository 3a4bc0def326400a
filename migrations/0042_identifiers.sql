-- The words of a text for search: those of English, and beside them the identifiers, whole and in parts. The parser of
-- Postgres keeps asyncio.TaskGroup whole and nothing of it, max_workers in parts alone, and knows no camel case.
--
-- Whole means in lower case, without spaces and hyphens. What only an identifier looks like has the label B: joined by
-- one of ._: or with camel case, six capitals, or a digit beside a letter; a number with its unit (4 GiB), or with the
-- capitals before it (RFC 4122). It has the label A where a paragraph or an item begins with it, as the definition of a
-- name does. Words joined otherwise (e-mail, and/or) are kept whole too, and shorter capitals (HTML), without a label.
create function search_lexemes(content text) returns tsvector
    language sql immutable parallel safe
as $$
    with names as (
        select m[2] as name, m[1] is not null as leads, least(row_number() over (), 16000) as place,
               m[2] ~ '\w[_:. >]\w\w|\w\w[_:.]\w|[[:lower:]][[:upper:]]|[[:upper:]]{6}|[[:alpha:]]-?\d|\d[[:alpha:]%]' as strong
          from regexp_matches(content,
               '(?:(^|\n\s*\n|\n(?=\s*[-*+#|]))[^\w\n]*(?:[a-z]+ ){0,2})?'
               '([A-Z]{2,}[ -]\d+(?:[.-]?\w+)*'
               '|\d+(?:[.,]\d+)?\s?(?:%|[kKMGT]i?B(?:it)?|bits?|bytes?|[mnu]?s|min|h|[kMG]?Hz|[kmM]?[VAW]|[kmc]?[mg])(?!\w)'
               '|\w+(?:(?:\.|::?|->|/|-)\w+)*)', 'g') as m
         where m[2] ~ '[._:/> -]|[[:lower:]][[:upper:]]|[[:upper:]]{3}|[[:alpha:]]\d|\d[[:alpha:]%]'
           and not (m[2] ~ '^[[:upper:]]+$' and to_tsvector('pg_catalog.english', m[2]) = '')  -- an emphasis: NOT
    ), wholes as (
        select distinct lower(regexp_replace(whole, '[\s-]', '', 'g')) as whole, place,
               case when not strong then '' when leads then 'A' else 'B' end as label
          from names cross join lateral unnest(array[name] || regexp_split_to_array(name, '[.:/>]+')) as w(whole)
         where whole = name or whole ~ '[[:alpha:]]\w'
    )
    select to_tsvector('pg_catalog.english', content)
        || to_tsvector('pg_catalog.english', coalesce((
               select string_agg(regexp_replace(regexp_replace(name, '[^[:alnum:]]+', ' ', 'g'),
                   '([[:lower:]\d])([[:upper:]])|([[:upper:]])([[:upper:]][[:lower:]])', '\1\3 \2\4', 'g'), ' ')
                 from names where name ~ '[.:/]|[[:lower:]\d][[:upper:]]'), ''))
        || coalesce((select string_agg(format('''%s'':%s%s', whole, place, label), ' ') from wholes), '')::tsvector
$$;

-- Written by a trigger, so that every version of the worker writes the same words. Chunks that are there keep theirs
-- until `refresh_lexemes` comes to them: to rewrite a large table and its indexes here would stop a start for minutes.
alter table chunks alter column lexemes drop expression;
alter table chunks add column lexemes_version smallint not null default 0;
create index chunks_outdated on chunks (tenant_id, vector_store_id) where lexemes_version < 1;

-- The title of the file comes last, where it begins no paragraph: it defines none of the names in it.
create function write_lexemes() returns trigger
    language plpgsql
as $$
begin
    new.lexemes := search_lexemes(concat(new.heading, E'\n\n', new.text, E'\n', (
        select f.title from files f where f.tenant_id = new.tenant_id and f.id = new.file_id)));
    new.lexemes_version := 1;
    return new;
end
$$;
create trigger write_lexemes before insert or update of lexemes_version on chunks
    for each row execute function write_lexemes();

-- Bring at most `chunks_max` chunks of one store to these words, with their counts; returns how many. A store that is
-- being written to waits for a later call, and a second caller for the first.
create function refresh_lexemes(chunks_max integer) returns integer
    language plpgsql security definer
    set search_path = public, pg_temp
as $$
declare
    tenant uuid;
    store text;
    refreshed integer;
begin
    select s.tenant_id, s.id into tenant, store
      from (select c.tenant_id, c.vector_store_id from chunks c where c.lexemes_version < 1 limit 1) as c
      join vector_stores s on s.tenant_id = c.tenant_id and s.id = c.vector_store_id
       for no key update of s skip locked;
    if store is null then
        return 0;
    end if;
    with before as materialized (
        select c.file_id, c.ordinal, c.lexemes
          from chunks c
         where c.tenant_id = tenant and c.vector_store_id = store and c.lexemes_version < 1
         limit chunks_max
    ), after as (
        update chunks c set lexemes_version = 1
          from before b
         where c.tenant_id = tenant and c.vector_store_id = store and c.file_id = b.file_id and c.ordinal = b.ordinal
        returning c.lexemes
    ), changed as (
        select lexeme, sum(change) as chunks
          from (select unnest(tsvector_to_array(b.lexemes)) as lexeme, -1 as change from before b
                union all
                select unnest(tsvector_to_array(a.lexemes)), 1 from after a) as each_one
         group by lexeme
        having sum(change) <> 0
    ), counted as (
        insert into lexeme_counts as l (tenant_id, vector_store_id, lexeme, chunks)
        select tenant, store, changed.lexeme, changed.chunks from changed
            on conflict (tenant_id, vector_store_id, lexeme) do update set chunks = l.chunks + excluded.chunks
    )
    select count(*) into refreshed from after;
    return refreshed;
end
$$;
revoke all on function refresh_lexemes(integer) from public;
grant execute on function refresh_lexemes(integer) to firsttoken_app;

-- How much a word says for a chunk: nothing if it is not there, 1 where it stands once, up to 1.6 the more often it
-- stands there, and 1.7 where an identifier begins a line. A phrase is there or not.
create function word_weight(lexemes tsvector, word tsquery) returns float8
    language sql immutable parallel safe
as $$
    select case when numnode(word) = 1 then ts_rank('{0.6, 0.6, 0.6, 1}', lexemes, word) / 0.3648
                when lexemes @@ word then 1
                else 0 end;
$$;

-- As before, but with these weights. Appending nothing unpacks the lexemes once, and not for every word.
create or replace function worded_chunks(stores text[], lookups text[], beside text[], words tsquery[],
                                         weights float8[], hits_max integer, visits_max integer, file_stores text[],
                                         files text[])
    returns table (vector_store_id text, file_id text, ordinal integer, weight float8)
    language sql stable security definer
    set search_path = public, pg_temp
    set max_parallel_workers_per_gather = 0
    set enable_sort = on
as $$
    with hits as materialized (
        (select m.tenant_id, m.vector_store_id, m.file_id, m.ordinal, m.lexemes || '' as lexemes
           from (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, c.lexemes
                   from chunks c
                  where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
                  limit visits_max) as m
          where files is null or (m.vector_store_id, m.file_id) in (select * from unnest(file_stores, files))
          limit hits_max)
        union
        (select m.tenant_id, m.vector_store_id, m.file_id, m.ordinal, m.lexemes || '' as lexemes
           from (select c.tenant_id, c.vector_store_id, c.file_id, c.ordinal, c.lexemes
                   from chunks c
                  where store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, lookups)
                    and store_terms(c.vector_store_id, c.lexemes) && looked_up(stores, beside)
                  limit visits_max) as m
          where files is null or (m.vector_store_id, m.file_id) in (select * from unnest(file_stores, files))
          limit hits_max)
    )
    select h.vector_store_id, h.file_id, h.ordinal,
           (select sum(w.weight * word_weight(h.lexemes, w.word)) from unnest(words, weights) as w(word, weight))
      from hits h
     where h.tenant_id = current_tenant() and h.vector_store_id = any(stores);
$$;
