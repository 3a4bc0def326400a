"""`firsttoken eval cases`: answers that were stored as cases for `firsttoken eval suite`."""

from __future__ import annotations

import sys

import orjson

from agents.store.answered import answered
from worker.auth.keys import Keys
from worker.config import Config
from worker.errors import StartError
from worker.gate.stored_cases import case_of
from worker.home import Home
from worker.start import open_database, read_secret


async def write_cases(config: Config, *, tenant: str, rated: str, limit: int, judged: bool) -> None:
    """Prints lines of JSON. Raises StartError where there is no such answer."""
    home = Home(config.home)
    home.prepare()
    async with open_database(config) as database:
        tenant_id = await Keys(database, read_secret(config, home)).known_tenant(tenant)
        if tenant_id is None:
            raise StartError(f"there is no tenant {tenant} (--tenant): `firsttoken keys create` makes one")
        found = await answered(database, tenant_id, None if rated == "any" else rated, limit)
    cases = [case for answer in found if (case := case_of(answer, judged)) is not None]
    if not cases:
        which = "stored answers" if rated == "any" else f"answers that were rated {rated}"
        raise StartError(f"tenant {tenant} has no {which} that a case can be made of")
    for case in cases:
        print(orjson.dumps(case).decode())
    print(
        f"{len(cases)} cases of {len(found)} answers. Addresses, numbers and keys were taken out; names cannot be told "
        "from other words: read the cases before you hand them on.",
        file=sys.stderr,
    )
