-- Search words as before, and beside the plural of an acronym its singular, as for other words: English takes no s from
-- GPUs, because of its u, nor from PDFs, which have no vowel. Written small they are told by just that, and https, which is
-- in every address, is none.
create or replace function search_lexemes(content text) returns tsvector
    language sql immutable parallel safe
as $$
    with names as (
        select m[2] as name, m[1] is not null as leads, least(row_number() over (), 16000) as place,
               m[2] ~ '^--|^v?\d+\.\d+\.|\w[_:. >]\w\w|\w\w[_:.]\w|[[:lower:]][[:upper:]]|[[:upper:]]{6}|[[:alpha:]]-?\d|\d[[:alpha:]%]'
                   as strong
          from regexp_matches(content,
               '(?:(^|\n\s*\n|\n(?=\s*[-*+#|]))(?:[^\w\n-]|-(?!-))*(?:[a-z]+ ){0,2})?'
               '([A-Z]{2,}[ -]\d+(?:[.-]?\w+)*'
               '|\d+(?:,\d{3})*(?:[.,]\d+)?\s?'
               '(?:%|[kKMGT]i?B(?:it)?|bits?|bytes?|[mnu]?s|min|h|[kMG]?Hz|[kmM]?[VAW]|[kmc]?[mg])(?!\w)'
               '|\d{1,3}(?:,\d{3})+(?!\w)'
               '|(?<!\w)--\w+(?:-\w+)*'
               '|\w+(?:(?:\.|::?|->|/|-)\w+)*)', 'g') as m
         where m[2] ~ '[._:/>, -]|[[:lower:]][[:upper:]]|[[:upper:]]{3}|[[:upper:]]{2}s$|[[:alpha:]]\d|\d[[:alpha:]%]'
           and not (m[2] ~ '^[[:upper:]]+$' and to_tsvector('pg_catalog.english', m[2]) = '')  -- an emphasis: NOT
    ), wholes as (
        select distinct lower(regexp_replace(whole, '^v(?=\d+\.)|[\s-]|,(?=\d{3}(?!\d))', '', 'g')) as whole, place,
               case when not strong then '' when leads then 'A' else 'B' end as label
          from names cross join lateral unnest(
               array[name] || regexp_split_to_array(name, '[.:/>]+') || substring(name from '^(\w*[[:upper:]]{2})s$')
               ) as w(whole)
         where (whole = name or whole ~ '[[:alpha:]]\w')
           and length(whole) <= 500  -- Postgres takes words of up to 2046 bytes
         union
        select m[1], 1, '' from regexp_matches(content, '\m(?!plus|thus|https|css|dns|tls)([b-df-hj-np-tv-xz]{2,20}u?)s\M', 'g') as m
    )
    select to_tsvector('pg_catalog.english', content)
        || to_tsvector('pg_catalog.english', coalesce((
               select string_agg(regexp_replace(regexp_replace(name, '[^[:alnum:]]+', ' ', 'g'),
                   '([[:lower:]\d])([[:upper:]])|([[:upper:]])([[:upper:]][[:lower:]])', '\1\3 \2\4', 'g'), ' ')
                 from names where name ~ '[.:/]|[[:lower:]\d][[:upper:]]'), ''))
        || coalesce((select string_agg(format('''%s'':%s%s', whole, place, label), ' ') from wholes), '')::tsvector
$$;

-- A column of its own default makes every chunk outdated without rewriting it: `refresh_lexemes` comes to them.
drop trigger write_lexemes on chunks;
alter table chunks drop column lexemes_version;
alter table chunks add column lexemes_version smallint not null default 0;
create index chunks_outdated on chunks (tenant_id, vector_store_id) where lexemes_version < 1;
create trigger write_lexemes before insert or update of lexemes_version on chunks
    for each row execute function write_lexemes();
