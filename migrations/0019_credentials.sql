-- What a credential may be used for: chat, ingest, ops, admin. One that was made before keeps what it could do: ask and
-- upload, and where it was an operator's also see the latencies of all tenants.
update api_keys
   set scopes = '{chat,ingest}' || case when 'operator' = any (scopes) then '{ops}' else '{}'::text[] end;
update sign_in_links
   set scopes = '{chat,ingest}' || case when 'operator' = any (scopes) then '{ops}' else '{}'::text[] end;

-- Which secret a key is hashed with, by its mark, which tells nothing of it; null: the one before marks were noted.
alter table api_keys add column secret_mark text;

-- The browsers that are signed in. A cookie names its row, so that a session can be ended before its time.
create table browser_sessions (
    tenant_id uuid not null references tenants on delete cascade,
    id text not null unique,
    scopes text[] not null,
    address text,
    agent text check (length(agent) <= 200),
    created_at timestamptz not null default now(),
    last_used_at timestamptz,
    expires_at timestamptz not null,
    revoked_at timestamptz,
    primary key (tenant_id, id)
);
create index on browser_sessions (expires_at);

-- Who did what, from where. The worker adds rows and reads them; it can neither change nor remove one.
create table audit_log (
    tenant_id uuid not null references tenants on delete cascade,
    position bigint generated always as identity,
    at timestamptz not null default now(),
    via text not null,
    subject text not null,
    address text,
    act text not null,
    object text not null,
    detail jsonb not null default '{}',
    primary key (tenant_id, position)
);
create index on audit_log (at);

do $$
declare
    t text;
begin
    foreach t in array array['browser_sessions', 'audit_log'] loop
        execute format('alter table %I enable row level security', t);
        execute format('create policy tenant on %I using (tenant_id = current_tenant())
                        with check (tenant_id = current_tenant())', t);
    end loop;
end
$$;
grant select, insert, update, delete on browser_sessions to firsttoken_app;
grant select, insert on audit_log to firsttoken_app;

-- The first hash is by the secret that signs now, a second one by the secret before: a key that is found by that one is
-- from then on stored under the first.
drop function authenticate_api_key(bytea);
create function authenticate_api_key(key_hashes bytea[], mark text)
    returns table (key_id text, tenant_id uuid, scopes text[], expires_at timestamptz, bounds jsonb)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update api_keys k
       set last_used_at = now(), hash = key_hashes[1], secret_mark = mark
     where k.hash = any (key_hashes)
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
 returning k.id, k.tenant_id, k.scopes, k.expires_at, k.bounds;
$$;

drop function redeem_sign_in_link(bytea);
create function redeem_sign_in_link(link_hashes bytea[])
    returns table (hash bytea, tenant_id uuid, scopes text[])
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from sign_in_links l
     where l.hash = any (link_hashes) and l.expires_at > now()
 returning l.hash, l.tenant_id, l.scopes;
$$;

-- Which of these keys and sessions still count, of all tenants at once. When one was used is noted to the minute: a row
-- is not written each time.
create function recheck_credentials(ids text[], used text[])
    returns table (id text)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update api_keys k set last_used_at = now()
     where k.id = any (used) and (k.last_used_at is null or k.last_used_at < now() - interval '1 minute');
    update browser_sessions s set last_used_at = now()
     where s.id = any (used) and (s.last_used_at is null or s.last_used_at < now() - interval '1 minute');
    select k.id from api_keys k
     where k.id = any (ids) and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
    union all
    select s.id from browser_sessions s
     where s.id = any (ids) and s.revoked_at is null and s.expires_at > now();
$$;

-- How many keys that count are hashed with another secret than this one: they end with it.
create function keys_of_other_secrets(mark text) returns bigint
    language sql stable security definer set search_path = public, pg_temp
as $$
    select count(*) from api_keys k
     where k.secret_mark is distinct from mark and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now());
$$;

-- A day is kept whatever is asked for: nobody removes the trace of what he has just done.
create function forget_audit(older_than interval) returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from audit_log where at < now() - greatest(older_than, interval '1 day');
$$;

create function forget_sessions() returns void
    language sql volatile security definer set search_path = public, pg_temp
as $$
    delete from browser_sessions where expires_at < now();
$$;

do $$
declare
    f text;
begin
    foreach f in array array['authenticate_api_key(bytea[], text)', 'redeem_sign_in_link(bytea[])',
                             'recheck_credentials(text[], text[])', 'keys_of_other_secrets(text)',
                             'forget_audit(interval)', 'forget_sessions()']
    loop
        execute format('revoke all on function %s from public', f);
        execute format('grant execute on function %s to firsttoken_app', f);
    end loop;
end
$$;
