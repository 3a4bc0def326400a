"""What a turn needs of the worker while it runs, built once at start and never replaced; and the MCP servers that its
request may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agents.definition import NO_AGENT, AgentRegistry, Definition, Surface
from agents.mcp_config import SERVERS_MAX
from agents.origin import origins_of
from agents.requested_server import RequestedServer, RequestedServers
from agents.turn import Caps, TurnServer
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.edge.limit_settings import LimitSettings
from worker.engines.model_aliases import ModelAliases
from worker.errors import ApiError
from worker.lifecycle.supervisor import Supervisor
from worker.runs.admission import DailyBudgets, RateLimits
from worker.telemetry.canaries import Canaries, Chosen
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.router import ModelRegistry
    from agents.store import ConversationStore, ResponseStore
    from inference.language_model import LanguageModel
    from worker.auth.authenticator import Authenticator
    from worker.auth.secret import Seals
    from worker.runs.admission import Admission
    from worker.runs.attachments import Attachments
    from worker.runs.idempotency import IdempotencyKeys
    from worker.runs.presence import Presence
    from worker.runs.queue_store import QueueStore
    from worker.runs.record import Targets
    from worker.runs.running_store import RunningStore
    from worker.runs.steering_store import SteeringStore
    from worker.telemetry.telemetry import Telemetry


def caps_of(settings: LimitSettings) -> Caps:
    """What the operator allows every turn."""
    return Caps(seconds=settings.answer_s, tokens=settings.answer_tokens, thought_tokens=settings.thought_tokens)


@dataclass(frozen=True, slots=True)
class McpServers:
    """`private` origins may be on this machine or in its networks, `public` ones may not. `servers`: None if there are
    neither."""

    servers: RequestedServers | None = None
    public: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()

    async def opened(
        self, principal: Principal, asked: Mapping[str, RequestedServer], trace: Trace
    ) -> tuple[TurnServer, ...]:
        """The servers of a request by the parameters that name them, with their tools. Raises ApiError."""
        if not asked:
            return ()
        if len(asked) > SERVERS_MAX:
            message = f"A request may use at most {SERVERS_MAX} MCP servers."
            raise ApiError(400, message, param=list(asked)[SERVERS_MAX], code="array_above_max_length")
        allowed = [self._allowed(principal, param, server) for param, server in asked.items()]
        assert self.servers is not None
        return await self.servers.opened(principal.tenant_id, allowed, trace)

    def _allowed(self, principal: Principal, param: str, server: RequestedServer) -> RequestedServer:
        origin, of_key = server.origin, principal.bounds.mcp_origins if principal.bounds else None
        if origin not in self.public | self.private or (of_key is not None and origin not in origins_of(of_key)):
            who = "your API key" if of_key is not None else "the operator of this server"
            message = f"Requests may not use MCP servers at {origin}: {who} does not allow it."
            raise ApiError(403, message, param=param, code="mcp_server_not_allowed")
        return replace(server, is_private=origin in self.private)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """`running` stores the responses in progress with their events, `queue` those of the background that wait,
    `steering` what is said to those in progress."""

    agent: Agent
    model_registry: ModelRegistry
    conversations: ConversationStore
    responses: ResponseStore
    running: RunningStore
    queue: QueueStore
    steering: SteeringStore
    idempotency_keys: IdempotencyKeys
    presence: Presence
    attachments: Attachments
    seals: Seals
    authenticator: Authenticator
    admission: Admission
    telemetry: Telemetry
    daily_budgets: DailyBudgets
    canaries: Canaries
    targets: Targets
    surfaces: Mapping[str, Surface] = field(default_factory=dict)
    caps: Caps = field(default_factory=Caps)  # of every turn
    waits: bool = False  # whether requests wait that do not say what to do if they will be late
    agent_registry: AgentRegistry = field(default_factory=AgentRegistry)
    aliases: ModelAliases = field(default_factory=ModelAliases)
    rates: RateLimits = field(default_factory=RateLimits)
    mcp_servers: McpServers = field(default_factory=McpServers)
    supervisor: Supervisor = field(default_factory=Supervisor)

    def choose(self, model: str, asked: str | None, tenant_id: UUID, conversation: str) -> Chosen:
        """The agent of a conversation, or what is tried in its place."""
        return self.canaries.choose(self.definition(model, asked), self.agent_registry, model, tenant_id, conversation)

    def model_of(self, name: str | None) -> LanguageModel:
        """The model that answers where a request names this model, route, agent or alias, and there is no choice."""
        if name is None:
            return self.model_registry.best(None).model
        named = self.aliases.model_of(name)
        return self.model_registry.best(self.agent_registry.of(named).model or named).model

    def checked(self, name: str | None) -> str:
        """The name of what serves a request: a model of this worker, or one of its routes or agents; the default is the
        first. Raises ApiError 404 for anything else."""
        if name is None:
            return self.model_registry.default
        served, model = [*self.model_registry.names, *self.agent_registry.models], self.aliases.model_of(name)
        if model not in served:
            available = ", ".join([*served, *self.aliases.of(served)])
            message = f"The model '{name}' is not available on this worker. Available: {available}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return model

    def frame(self, request: ResponseRequest, **more: Any) -> ResponseFrame:
        """What all snapshots of the response to this request share. Raises ApiError 404."""
        model = self.checked(request.model)
        return ResponseFrame(request, model, usual=self.sampling_defaults(request.model), **more)

    def sampling_defaults(self, name: str | None) -> Mapping[str, float]:
        """Of the model that answers a request which names this model, route, agent or alias."""
        return self.model_of(name).sampling_defaults.values

    def definition(self, model: str, asked: str | None) -> Definition:
        """What the model that a request names adds to its turns. `model` is what it stands for, `asked` what it says:
        nothing leaves the choice to the surface and to the worker."""
        if asked is None:
            return NO_AGENT
        return Definition(model=model) if model in self.model_registry.names else self.agent_registry.of(model)

    @property
    def surface_names(self) -> list[str]:
        """Those that a request may name."""
        return list(dict.fromkeys([*self.targets.by_surface, *self.surfaces]))
