-- A tenant by its name, for commands that must not make one: null when there is none.
create function known_tenant(tenant_name text) returns uuid
    language sql stable security definer set search_path = public, pg_temp
as $$
    select id from tenants where name = tenant_name;
$$;
revoke all on function known_tenant(text) from public;
grant execute on function known_tenant(text) to firsttoken_app;
