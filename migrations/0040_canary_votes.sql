-- More of what became of the answers of a canary. What is said of a conversation later, by people or by a model that judges
-- it, is a vote: compared in the order in which it was said, and said once.
alter table canary_answers add column declined boolean, add column cost real;

-- Whose answers have won, also when the canary has been ended since.
alter table canaries add column promoted_at timestamptz;
update canaries set promoted_at = now() where state = 'promoted';

create table canary_votes (
    canary_id uuid not null,
    unit bytea not null,
    measure text collate "C" not null check (measure in ('thumbs_down', 'graded')),
    position bigint generated always as identity,
    treated boolean not null,
    harm real not null check (harm >= 0 and harm <= 1),
    primary key (canary_id, unit, measure),
    foreign key (canary_id, unit) references canary_answers on delete cascade
);
create index on canary_votes (canary_id, position);

alter table canary_votes enable row level security;
create policy worker on canary_votes using (true) with check (true);
grant select, insert on canary_votes to firsttoken_app;
