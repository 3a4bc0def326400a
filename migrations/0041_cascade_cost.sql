-- Milliseconds of engine_ms that went to what another model did then: steps that it took over, prompts read in case it had to.
alter table spending add column cascade_ms double precision not null default 0;
