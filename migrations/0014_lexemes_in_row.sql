-- Of a row that is too large the text goes out, which only the best are asked for, and not the lexemes, which the search
-- by words reads of hundreds. Rows that are there stay as they are.
alter table chunks alter column lexemes set storage main;
