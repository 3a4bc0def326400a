"""`firsttoken agents`: agents and surfaces, and what the keys of a tenant get on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from agents.surface import USUAL, Surface
from agents.turn import TOKENS_MAX, Caps, Limits, Owner, Turn
from inference.generation import Priority
from worker.auth.keys import ApiKey
from worker.auth.principal import NOBODY, KeyLimits, Principal
from worker.cli.credentials import keys_of
from worker.config import Config
from worker.lifecycle.agent_files import list_agents, read_agents
from worker.telemetry.goodput import NO_TARGET, Targets

# The names in the settings of keys and surfaces.
NAMES = {
    "steps": "steps",
    "calls": "calls",
    "tokens": "tokens",
    "thought_tokens": "thought_tokens",
    "wall_clock_s": "seconds",
    "tool_timeout_s": "tool_seconds",
    "retrieval_ms": "retrieval_ms",
    "cost": "cost",
    "answer_tokens": "answer_tokens",
    "answer_s": "answer_s",
}
RATES = ("requests_per_minute", "tokens_per_minute")


async def show_policies(config: Config, *, with_keys: bool, tenant: str) -> None:
    """Agents and surfaces, and on request what each key gets there. Raises StartError for a file that no worker could
    serve, and for an unknown tenant."""
    await list_agents(config)
    if with_keys:
        print_policies(config, tenant, await keys_of(config, tenant))


def print_policies(config: Config, tenant: str, keys: Sequence[ApiKey]) -> None:
    """What the keys of a tenant get on each surface."""
    surfaces = {**USUAL, **read_agents(config).surfaces}
    targets = Targets.parse(config.targets).with_those_of(surfaces)
    active = [key for key in keys if key.state == "active"]
    for key in active:
        for name, surface in surfaces.items():
            print(f"key {key.hint}… on {name:<12} {policy(key, surface, config)}; {told(targets, name)}")
    if not active:
        print(f"tenant {tenant} has no keys that are active")


def told(targets: Targets, surface: str) -> str:
    target = targets.by_surface.get(surface, NO_TARGET)
    return "no targets" if target == NO_TARGET else str(target)


def policy(key: ApiKey, surface: Surface, config: Config) -> str:
    """The upper limits of a turn with this key on a surface, whatever it requests; an agent may set less, or more if
    the key and the surface set nothing."""
    bounds = KeyLimits.model_validate(dict(key.bounds))
    principal = Principal(NOBODY, key.id, key.scopes, "api_key", bounds)
    turn = surface.applied(principal.bounded(Turn(NOBODY, (), priority=Priority.INTERACTIVE)))
    caps = Caps(wall_clock_s=config.answer_s, tokens=config.answer_tokens, thought_tokens=config.thought_tokens)
    limits = turn.limits.capped(caps, Owner.SERVER)
    rates = [f"{getattr(bounds, name)} {name.replace('_', ' ')}" for name in RATES if getattr(bounds, name)]
    last = [f"late {surface.late or config.late}", *rates]
    return ", ".join([f"class {turn.priority.name.lower()}", *_limits(limits), *last])


def _limits(limits: Limits) -> list[str]:
    values = {told: getattr(limits, name) for name, told in NAMES.items()}
    return [f"{name} {value:g}" for name, value in values.items() if isfinite(value) and value != TOKENS_MAX]
