-- Bounds of every turn that is asked for with a key: {"steps": 4, "cost": 2.5}. Empty: as usual.
alter table api_keys add column bounds jsonb not null default '{}' check (jsonb_typeof(bounds) = 'object');

drop function authenticate_api_key(bytea);
create function authenticate_api_key(key_hash bytea)
    returns table (key_id text, tenant_id uuid, scopes text[], expires_at timestamptz, bounds jsonb)
    language sql volatile security definer set search_path = public, pg_temp
as $$
    update api_keys k
       set last_used_at = now()
     where k.hash = key_hash
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
 returning k.id, k.tenant_id, k.scopes, k.expires_at, k.bounds;
$$;
revoke all on function authenticate_api_key(bytea) from public;
grant execute on function authenticate_api_key(bytea) to firsttoken_app;
