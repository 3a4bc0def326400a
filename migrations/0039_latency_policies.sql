-- Who sees a row is found out once for a statement, not for each row; and the planner, which cannot see into the settings
-- that the functions read, no longer takes weeks of answers for a few hundred rows, which it sorted on the disk.
do $$
declare
    t text;
begin
    foreach t in array array['latency', 'latency_slices', 'spending', 'traces'] loop
        execute format('alter policy tenant on %I using (tenant_id = (select current_tenant()))', t);
        execute format('alter policy operator on %I using ((select is_operator()))', t);
    end loop;
end
$$;

-- The past that 0038 made lies scattered, twelve blocks where one would do. What came since came in this order.
cluster latency_slices using latency_slices_resolution_s_at_idx;
