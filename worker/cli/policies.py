"""`firsttoken agents`: the agents and surfaces of the file, and what the keys of a tenant get on each surface."""

from __future__ import annotations

from math import isfinite
from uuid import UUID

from agents.surface import USUAL, Surface
from agents.turn import Limits, Turn
from inference.core import Priority
from worker.auth.bounds import KeyBounds
from worker.auth.keys import ApiKey, Keys
from worker.auth.principal import Principal
from worker.config import Config
from worker.errors import StartError
from worker.goodput import NO_TARGET, Targets
from worker.home import Home
from worker.roster import list_agents, read_roster
from worker.start import open_database, read_secret

NOBODY = UUID(int=0)
# As the settings of keys and surfaces name them.
NAMES = {
    "steps": "steps",
    "calls": "calls",
    "tokens": "tokens",
    "wall_clock_s": "seconds",
    "tool_timeout_s": "tool_seconds",
    "retrieval_ms": "retrieval_ms",
    "cost": "cost",
}
RATES = ("requests_per_minute", "tokens_per_minute")


async def show_policies(config: Config, *, with_keys: bool, tenant: str) -> None:
    """Raises StartError for a file that no worker could serve, and for a tenant that is not there."""
    await list_agents(config)
    if not with_keys:
        return
    surfaces = {**USUAL, **read_roster(config).surfaces}
    targets = Targets.parse(config.targets).with_those_of(surfaces)
    active = [key for key in await _keys_of(config, tenant) if key.state == "active"]
    for key in active:
        for name, surface in surfaces.items():
            print(f"key {key.hint}… on {name:<12} {policy(key, surface, config.late)}; {told(targets, name)}")
    if not active:
        print(f"tenant {tenant} has no keys that are active")


async def _keys_of(config: Config, tenant: str) -> list[ApiKey]:
    home = Home(config.home)
    home.prepare()
    async with open_database(config) as database:
        keys = Keys(database, read_secret(config, home))
        tenant_id = await keys.known_tenant(tenant)
        if tenant_id is None:
            raise StartError(f"there is no tenant {tenant} (--tenant)")
        return await keys.list(tenant_id)


def told(targets: Targets, surface: str) -> str:
    target = targets.by_surface.get(surface, NO_TARGET)
    return "no targets" if target == NO_TARGET else str(target)


def policy(key: ApiKey, surface: Surface, late: str) -> str:
    """What a turn with this key may have at most on a surface, whatever it asks for; an agent may set less, or more
    where the key and the surface set nothing."""
    bounds = KeyBounds.model_validate(dict(key.bounds))
    principal = Principal(NOBODY, key.id, key.scopes, "api_key", bounds)
    turn = surface.applied(principal.bounded(Turn(NOBODY, (), priority=Priority.INTERACTIVE)))
    rates = [f"{getattr(bounds, name)} {name.replace('_', ' ')}" for name in RATES if getattr(bounds, name)]
    last = [f"late {surface.late or late}", *rates]
    return ", ".join([f"class {turn.priority.name.lower()}", *_limits(turn.limits), *last])


def _limits(limits: Limits) -> list[str]:
    values = {told: getattr(limits, name) for name, told in NAMES.items()}
    return [f"{name} {value:g}" for name, value in values.items() if isfinite(value)]
