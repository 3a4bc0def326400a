"""`firsttoken agents`: agents and surfaces, and what the keys of a tenant get on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import isfinite

from agents.definition import USUAL, AgentRegistry, Surface
from agents.routing.policy import described
from agents.tools import NAMES
from agents.turn import TOKENS_MAX, Caps, Limits, Owner, Turn
from worker.auth.keys import ApiKey
from worker.auth.principal import NOBODY, KeyLimits, Principal
from worker.cli.credentials import keys_of
from worker.config import Config
from worker.engines.model_file import ModelFile, read_models
from worker.engines.model_names import check_files
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.agent_files import read_agents
from worker.runs.record import Targets
from worker.runs.run_services import caps_of

LIMITS = (*(each.name for each in fields(Caps)), "answer_tokens", "answer_s")
RATES = ("requests_per_minute", "tokens_per_minute")


async def show_policies(config: Config, *, with_keys: bool, tenant: str) -> None:
    """Agents and surfaces, and on request what each key gets there. Raises StartError for a file that no worker could
    serve, and for an unknown tenant."""
    await list_agents(config)
    if with_keys:
        print_policies(config, tenant, await keys_of(config, tenant))


def print_policies(config: Config, tenant: str, keys: Sequence[ApiKey]) -> None:
    """What the keys of a tenant get on each surface."""
    surfaces = _surfaces(config, read_agents(config))
    active = [key for key in keys if key.state == "active"]
    for key in active:
        for name, surface, target in surfaces:
            print(f"key {key.hint}… on {name:<12} {policy(key, surface, config)}; {target}")
    if not active:
        print(f"tenant {tenant} has no keys that are active")


def _surfaces(config: Config, agent_registry: AgentRegistry) -> list[tuple[str, Surface, str]]:
    """The name of each surface, its policy and its targets."""
    surfaces = {**USUAL, **agent_registry.surfaces}
    targets = Targets.parse(config.targets).with_those_of(surfaces).by_surface
    return [(name, surface, str(targets.get(name, "no targets"))) for name, surface in surfaces.items()]


def policy(key: ApiKey, surface: Surface, config: Config) -> str:
    """The upper limits of a turn with this key on a surface, whatever it requests; an agent may set less, or more if
    the key and the surface set nothing."""
    bounds = KeyLimits.model_validate(dict(key.bounds))
    principal = Principal(NOBODY, key.id, key.scopes, "api_key", bounds)
    turn = surface.applied(principal.bounded(Turn(NOBODY, ())))
    limits = turn.limits.capped(caps_of(config), Owner.SERVER)
    rates = [f"{getattr(bounds, name)} {name.replace('_', ' ')}" for name in RATES if getattr(bounds, name)]
    last = [f"late {surface.late or config.late}", *rates]
    best = surface.capped(principal.best_class)
    return ", ".join([f"class {best.name.lower()}", *_limits(limits), *last])


def _limits(limits: Limits) -> list[str]:
    values = {name: getattr(limits, name) for name in LIMITS}
    return [f"{name} {value:g}" for name, value in values.items() if isfinite(value) and value != TOKENS_MAX]


def _model_of(name: str | None, models: ModelFile | None) -> str:
    """The name of a model; for a route also its policy."""
    if name is None:
        return "any model"
    return f"{name} ({described(models.routes[name])})" if models and name in models.routes else name


def _list_models(models: ModelFile) -> None:
    for name, table in models.models.items():
        where = f"engines at {table.engines}" if table.engines else f"loaded at {table.load}"
        price = f"{table.price.engine_second:g} per second of its engine"
        print(f"{'model ' + name:<24} {table.model or 'the bundled model'}; {where}; {price}")
    for name, policy in models.routes.items():
        print(f"{'route ' + name:<24} {policy.policy}: {described(policy)}")
    for name, model in models.aliases.items():
        print(f"{'alias ' + name:<24} {model}")


async def list_agents(config: Config) -> None:
    """Print the agents. Raises StartError for agents that no worker could serve."""
    agent_registry, models = read_agents(config), read_models(config)
    for model, agent in zip(agent_registry.models, agent_registry.agents.values(), strict=True):
        searched = f"searches {', '.join(agent.search.stores)}" if agent.search else "searches nothing"
        tools = ", ".join(agent.tools) or "no tools"
        print(f"{model:<24} {tools}; {searched}; {_model_of(agent.model, models)}  {agent.description}".rstrip())
    for name, surface, target in _surfaces(config, agent_registry):
        print(f"{'surface ' + name:<24} {target}; {str(surface) or 'no limits of its own'}")
    if not agent_registry.agents:
        print(f"no agents: define them in {config.agents or Home(config.home).agents_file}")
    if models:
        _list_models(models)
    if problems := agent_registry.problems(NAMES, models.names if models else None):
        raise StartError(" ".join(problems))
    if models:
        check_files(config)
