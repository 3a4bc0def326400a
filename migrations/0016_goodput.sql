-- Whether a turn came as fast as its surface was to answer then; null where there was no target.
alter table traces add column within_target boolean;
