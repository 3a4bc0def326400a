-- Files that are read into a store past the queue: how many are left, and the worker that reads them, by the number of its
-- advisory lock. While it lives they count as waiting, whichever worker is asked.
alter table vector_stores add column unread integer not null default 0,
                          add column reader bigint;
