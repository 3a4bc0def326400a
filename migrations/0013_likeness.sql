-- What the store's embedding model made of one text, since names tell models apart only as long as nobody reuses one.
-- Null until something is written; a store that is there takes the model that writes to it next for its own.
alter table vector_stores add column likeness bytea;
