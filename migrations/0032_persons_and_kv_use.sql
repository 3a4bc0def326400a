-- Who signed in, where an organisation said so: people see and end the sessions of all their browsers.
alter table browser_sessions add column person text check (length(person) <= 200);

-- How much of the KV cache holds tokens: 1 is all of it.
alter table worker_minutes add column kv_use real;
