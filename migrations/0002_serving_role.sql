-- The worker serves as firsttoken_app by `set role`. Since Postgres 16 not even the login that made the role may do
-- that without being granted it; superusers always may.

do $$
begin
    set local role firsttoken_app;
    reset role;
exception when insufficient_privilege then
    grant firsttoken_app to current_user;
end
$$;
