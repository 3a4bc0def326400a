"""Turns on several models: who computes which step, what is told of it, and what happens when nobody can take over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from typing import Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter

from agents import prompt_builder
from agents.agent import Agent
from agents.definition import Definition, Surface
from agents.events import Event, EventList, TextDelta
from agents.message import Message
from agents.router import Candidate, ModelRegistry
from agents.routing.policy import Policy
from agents.toolbox import Toolbox
from agents.turn import AnswerFormat, FileSearch, Prices, Turn
from inference.errors import EngineStopped, InferenceError, NoRoom, UnseenPicture
from inference.generation import ANY_TERMS, Facts, Sampling, Spent, Terms
from inference.picture import Picture, Pixels
from inference.prompt import ChatMessage, PlacedPicture
from inference.trace import Span, Trace
from tests.agents.turns import TENANT, Ran, ShelfSearcher, asked, call, check_order, double, passage, user
from tests.scripted import ScriptedGeneration, ScriptedModel

UNLIKELY = (log(0.01),)
POLICY: TypeAdapter[Policy] = TypeAdapter(Policy)
CASCADE = {"policy": "cascade", "first": "small", "then": "large"}
STEPS = {"policy": "steps", "tools": "small", "answer": "large"}
SIZE = {"n_params": 1_000_000}


def model(name: str, *replies: str, **rest: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), name=name, measures=SIZE, **rest)


class KeyedModel(ScriptedModel):
    """Its digests are its own, as those of real models are."""

    def unknown(self, messages: Sequence[ChatMessage], *, salt: str = "") -> list[bytes]:
        return [self.name.encode() + digest for digest in super().unknown(messages, salt=salt)]


def model_registry(small: ScriptedModel, large: ScriptedModel, route: dict[str, Any], **of_large: Any) -> ModelRegistry:
    """The small model's engine costs a tenth."""
    candidates = {"small": Candidate(small, 0.1), "large": Candidate(large, 1.0, **of_large)}
    return ModelRegistry(candidates, {"auto": POLICY.validate_python(route)}, "auto")


async def run(models: ModelRegistry, turn: Turn, agent: Agent | None = None, prices: Prices | None = None) -> Ran:
    trace, told = Trace(), EventList()
    agent = agent or Agent(models, None, Toolbox([double]), prices or Prices())
    await agent.run(turn, trace, told)
    check_order(told.events)
    return Ran(told.events, trace)


def routes_of(ran: Ran) -> list[Span]:
    return [span for span in ran.trace.spans if span.name == "route"]


async def test_a_question_with_a_picture_goes_to_the_model_that_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = model("small", "Paris."), model("large", "It is red.", sees=True)
    models = model_registry(small, large, CASCADE)

    async def see(tenant_id: UUID, picture: Picture) -> Pixels:
        return Pixels(1, 1, b"rgb")

    shown = (PlacedPicture(0, Picture.of("image/png", b"red")),)
    turn = Turn(TENANT, (Message("user", "What is it?", pictures=shown),))
    ran = await run(models, turn, Agent(models, None, Toolbox(), decode_picture=see))
    assert ran.answer == "It is red."
    assert not small.prompts
    with pytest.raises(UnseenPicture, match="does not decode images"):
        await run(models, turn)
    monkeypatch.setattr(prompt_builder, "PIXEL_BYTES_MAX", 2)
    with pytest.raises(UnseenPicture, match="start a new one, or send smaller ones"):
        await run(models, turn, Agent(models, None, Toolbox(), decode_picture=see))
    assert (await run(models, asked())).answer == "Paris."


async def test_a_sure_answer_of_the_small_model_is_told_and_the_large_one_is_not_asked() -> None:
    small, large = model("small", "Paris is the capital."), model("large", "No.")
    ran = await run(model_registry(small, large, CASCADE), asked())
    assert ran.answer == "Paris is the capital."
    assert not large.prompts
    (route,) = routes_of(ran)
    assert route.attributes["model"] == "small" and route.attributes["took_over"] is False
    assert route.attributes["trial.reason"] == "sure enough"
    assert ran.trace.attributes["firsttoken.model"] == "small"


async def test_the_large_model_takes_an_unsure_answer_over_before_a_token_is_told() -> None:
    small, large = model("small", "Rome, or so.", logprobs=UNLIKELY), model("large", "Paris.")
    prices = Prices(output=1000.0)
    ran = await run(model_registry(small, large, CASCADE), asked(), prices=prices)
    assert ran.answer == "Paris."
    assert "Rome" not in "".join(event.text for event in ran.events if isinstance(event, TextDelta))
    assert small.generations[0].cancelled
    (route,) = routes_of(ran)
    assert (route.attributes["model"], route.attributes["took_over"]) == ("large", True)
    assert route.attributes["trial.reason"] == "an unlikely token"
    assert ran.trace.attributes["firsttoken.model"] == "large"
    assert ran.trace.attributes["firsttoken.escalations"] == 1
    assert ran.finished.usage.output_tokens == len(large.generations[0].ids)
    own = len(large.generations[0].ids)
    assert ran.trace.attributes["firsttoken.cost"] == own + len(small.generations[0].ids)


@pytest.mark.parametrize(
    ("begins", "reason"),
    [
        ("Eight [7].", "cites what was not found"),
        ("Eight [1].", "sure enough"),
        ("See [7](http://a).", "sure enough"),
        ("Sorry, no.", "refuses"),
    ],
)
async def test_an_answer_that_cites_what_was_not_found_is_taken_over(begins: str, reason: str) -> None:
    models = model_registry(model("small", begins, piece_chars=4), model("large", "Eight [1]."), CASCADE)
    agent = Agent(models, ShelfSearcher([passage(1)]), Toolbox())
    ran = await run(models, asked("Which?", file_search=FileSearch(("docs",))), agent)
    assert routes_of(ran)[0].attributes["trial.reason"] == reason
    assert ran.answer == (begins if reason == "sure enough" else "Eight [1].")


@pytest.mark.parametrize(("said", "reason"), [("[1, 1]", "breaks its schema"), ("[1, 2]", "sure enough")])
async def test_a_short_answer_that_breaks_its_schema_is_taken_over(said: str, reason: str) -> None:
    form = AnswerFormat({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "text.format")
    models = model_registry(model("small", said), model("large", "[3, 4]"), CASCADE)
    ran = await run(models, asked(answer_format=form))
    assert routes_of(ran)[0].attributes["trial.reason"] == reason
    assert ran.answer == (said if reason == "sure enough" else "[3, 4]")


async def test_what_a_cascade_computed_in_vain_is_told_apart_and_each_engine_has_its_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = partial(Facts, spent=Spent(5_000_000, 0))  # of each request to an engine
    monkeypatch.setattr("tests.scripted.Facts", each)
    prices = Prices(engine_second=100.0)

    async def told(small: ScriptedModel, **route: Any) -> tuple[object, ...]:
        models = model_registry(small, model("large", "Paris."), {**CASCADE, **route})
        models.candidates["small"].is_priced = True  # 0.1 a second
        attributes = (await run(models, asked(), prices=prices)).trace.attributes
        return tuple(attributes[f"firsttoken.{name}"] for name in ("engine_ms", "cascade_ms", "cost"))

    sure, unsure = model("small", "Paris."), partial(model, "small", "Rome.", logprobs=UNLIKELY)
    assert await told(sure) == (5.0, 0.0, 0.0005)
    assert await told(unsure()) == (10.0, 5.0, 0.5005)
    assert await told(sure, hedge=True) == (10.0, 5.0, 0.5005)
    assert await told(unsure(), hedge=True) == (15.0, 5.0, 1.0005)


async def test_likelihoods_that_nobody_asked_for_are_not_told() -> None:
    models = model_registry(model("small", "Paris is the capital."), model("large", "No."), CASCADE)
    ran = await run(models, asked())
    assert not any(event.logprobs for event in ran.events if isinstance(event, TextDelta))
    wants = await run(models, asked(sampling=Sampling(top_logprobs=1)))
    told = [each for event in wants.events if isinstance(event, TextDelta) for each in event.logprobs]
    assert told and all(len(each.top) == 1 for each in told)


async def test_by_step_the_small_model_calls_tools_and_the_large_one_answers() -> None:
    small = model("small", call("double", x=4), "It is nine.", piece_chars=10)
    large = model("large", "It is eight.")
    ran = await run(model_registry(small, large, STEPS), asked(server_tools=("double",)))
    assert (ran.results, ran.answer) == (["8"], "It is eight.")
    assert [route.attributes["trial.reason"] for route in routes_of(ran)] == ["calls a tool", "an answer"]
    decodes = [span.attributes["model"] for span in ran.trace.spans if span.name == "decode"]
    assert decodes[-1] == "large" and decodes[0] == "small"


async def test_by_step_an_answer_without_tools_is_the_large_models_at_once() -> None:
    small, large = model("small", "No."), model("large", "Yes.")
    ran = await run(model_registry(small, large, STEPS), asked())
    assert ran.answer == "Yes." and not small.prompts


class Refusing(ScriptedModel):
    """Its queue is full."""

    def generate(self, *_arguments: Any, **_options: Any) -> ScriptedGeneration:
        raise EngineStopped("it is shutting down")


async def test_where_the_large_model_cannot_take_over_the_small_one_goes_on() -> None:
    small = model("small", "Rome, or so.", logprobs=UNLIKELY)
    ran = await run(model_registry(small, Refusing(["x"], name="large", measures=SIZE), CASCADE), asked())
    assert (ran.finished.status, ran.answer) == ("completed", "Rome, or so.")
    (route,) = routes_of(ran)
    assert (route.attributes["took_over"], route.attributes["trial.reason"]) == (False, "no large: EngineStopped")


class Failing(ScriptedGeneration):
    async def stream(self, receive: Any) -> None:
        raise InferenceError("the engine failed")


class FailingModel(ScriptedModel):
    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        return Failing("x", len(prompt), sampling, self.piece_chars)


async def test_an_engine_that_fails_on_trial_is_taken_over_as_well() -> None:
    small = FailingModel(["x"], name="small", measures=SIZE)
    ran = await run(model_registry(small, model("large", "Paris."), CASCADE), asked())
    assert (ran.finished.status, ran.answer) == ("completed", "Paris.")


class Slow(ScriptedGeneration):
    """Says its first word and then nothing, until it is released."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.released = asyncio.Event()

    async def __aiter__(self) -> Any:
        first = True
        async for delta in super().__aiter__():
            yield delta
            if first:
                first = False
                await self.released.wait()


@dataclass
class SlowModel(ScriptedModel):
    running: list[Slow] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        self.running.append(Slow(self.replies[0], len(prompt), sampling, self.piece_chars))
        self.started.set()
        return self.running[-1]


class Watching(EventList):
    """Notes when the first text comes."""

    def __init__(self) -> None:
        super().__init__()
        self.spoke = asyncio.Event()

    def write(self, events: Sequence[Event]) -> None:
        super().write(events)
        if any(isinstance(event, TextDelta) for event in events):
            self.spoke.set()


async def test_what_a_slow_model_said_is_told_when_its_time_is_over() -> None:
    small = SlowModel(["Paris, I think."], name="small", measures=SIZE)
    models = model_registry(small, model("large", "No."), {**CASCADE, "hold": {"ms": 20}})
    told, trace = Watching(), Trace()
    turn = asyncio.create_task(Agent(models, None, Toolbox()).run(asked(), trace, told))
    await told.spoke.wait()
    assert not small.running[0].released.is_set()
    small.running[0].released.set()
    await turn
    (route,) = [span for span in trace.spans if span.name == "route"]
    assert route.attributes["trial.tokens"] == 1 and float(route.attributes["trial.held_ms"] or 0) >= 20


async def test_a_client_that_leaves_during_a_trial_stops_both_models() -> None:
    small = SlowModel(["Paris."], name="small", measures=SIZE)
    turn = asyncio.create_task(
        Agent(model_registry(small, model("large", "No."), CASCADE), None, Toolbox()).run(asked(), Trace(), EventList())
    )
    await small.started.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert small.running[0].cancelled
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "trial"]


async def test_hedged_the_large_model_reads_the_prompt_while_the_small_one_begins() -> None:
    large = model("large", "No.")
    await run(model_registry(model("small", "Paris is the capital."), large, {**CASCADE, "hedge": True}), asked())
    assert large.ahead and not large.prompts
    assert all(reading.cancelled for reading in large.generations)


async def test_a_prompt_that_is_too_long_for_the_model_in_reserve_ends_no_answer_and_takes_nothing_from_it() -> None:
    small = model("small", "It is so [2].")
    models = model_registry(small, model("large", "No.", context_length=130), {**CASCADE, "hedge": True})
    told = EventList()
    searcher = ShelfSearcher([passage(1), passage(2)])
    turn = asked("What is it?", file_search=FileSearch(("docs",)))
    await Agent(models, searcher, Toolbox()).run(turn, Trace(), told)
    ran = Ran(told.events, Trace())
    assert (ran.finished.status, ran.answer) == ("completed", "It is so [2].")
    (cited,) = [item.citations for item in ran.output if isinstance(item, Message)]
    assert [citation.filename for citation in cited] == ["2.md"]

    models = model_registry(
        model("small", "Paris."), model("large", "No.", context_length=10), {**CASCADE, "hedge": True}
    )
    assert (await run(models, asked())).finished.status == "completed"


class Unanswering(ScriptedGeneration):
    """Its engine has not said yet whether it takes the request."""

    async def admitted(self) -> None:
        await asyncio.Event().wait()


@dataclass
class UnansweringModel(ScriptedModel):
    started: asyncio.Event = field(default_factory=asyncio.Event)
    running: list[Unanswering] = field(default_factory=list)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        self.running.append(Unanswering("x", len(prompt), sampling, self.piece_chars))
        self.started.set()
        return self.running[-1]


async def test_a_client_that_leaves_while_another_engine_is_asked_stops_that_one_too() -> None:
    large = UnansweringModel(["x"], name="large", measures=SIZE)
    models = model_registry(model("small", "Rome, or so.", logprobs=UNLIKELY), large, CASCADE)
    turn = asyncio.create_task(Agent(models, None, Toolbox()).run(asked(), Trace(), EventList()))
    await large.started.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert large.running[0].cancelled


async def test_a_model_that_is_gone_from_the_file_still_takes_over_what_began_before() -> None:
    models = model_registry(model("small", "Rome, or so.", logprobs=UNLIKELY), model("large", "Paris."), CASCADE)

    class Reloading(EventList):
        async def open(self) -> None:
            models.replace(ModelRegistry({"small": models.candidates["small"]}))

    told = Reloading()
    await Agent(models, None, Toolbox()).run(asked(), Trace(), told)
    ran = Ran(told.events, Trace())
    assert (ran.finished.status, ran.answer) == ("completed", "Paris.")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "trial"]


async def test_a_conversation_stays_with_the_model_that_knows_it_where_that_is_cheaper() -> None:
    """The large model has answered, and reading it all again would cost the small one more."""
    small, large = model("small", "No."), model("large", "Paris.")
    models = model_registry(small, large, CASCADE)
    models.candidates["small"].speed.prefill_token_s = models.candidates["large"].speed.prefill_token_s = 0.1
    agent = Agent(models, None, Toolbox())
    long = "All about Paris. " * 100
    await run(models, asked(long, model="large"), agent)
    history = (user(long), Message("assistant", "Paris."))
    known = await run(models, Turn(asked().tenant_id, (user("And?"),), history=history), agent)
    assert known.answer == "Paris."
    assert routes_of(known)[0].attributes["warm.large"] is True
    other = replace(asked(), tenant_id=UUID(int=9), history=history)
    assert routes_of(await run(models, other, agent))[0].attributes["warm.large"] is False


async def test_what_another_worker_had_from_a_model_is_warm_on_that_one_here() -> None:
    """Engines are shared: only workers do not know of each other."""
    small, large = (KeyedModel(["Fine."], name=name, measures=SIZE, shares_turns=True) for name in ("small", "large"))
    models = model_registry(small, large, CASCADE)
    agent = Agent(models, None, Toolbox())
    turn = Turn(asked().tenant_id, (user("And?"),), history=(user("Hello"), Message("assistant", "Paris.")))
    unknown = agent.unknown(turn)
    assert sorted(candidate.name for candidate in unknown.values()) == ["large", "small"]
    stored = [(digest, (1, 2)) for digest, candidate in unknown.items() if candidate.name == "large"]
    agent.learn(turn, unknown, stored)
    assert (small.learnt, large.learnt) == ({}, dict(stored))
    (route,) = routes_of(await run(models, turn, agent))
    assert (route.attributes["warm.small"], route.attributes["warm.large"]) == (False, True)


@pytest.mark.parametrize(
    ("request_model", "agent_model", "surface_model", "answers"),
    [
        (None, None, None, "default"),
        (None, None, "small", "small"),
        (None, "large", "small", "large"),
        ("small", "large", None, "small"),
    ],
)
async def test_a_request_comes_before_its_agent_and_that_before_its_surface(
    request_model: str | None, agent_model: str | None, surface_model: str | None, answers: str
) -> None:
    models = {name: Candidate(model(name, f"I am {name}.")) for name in ("default", "small", "large")}
    turn = Surface(model=surface_model).applied(Definition(model=agent_model).applied(asked(model=request_model)))
    assert (await run(ModelRegistry(models), turn)).answer == f"I am {answers}."


@dataclass
class Coming:
    """An engine that has to be loaded first."""

    fails: InferenceError | None = None
    is_loaded: bool = False
    users: int = 0
    begun: int = 0
    seen: list[int] = field(default_factory=list)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def foresee(self) -> None:
        self.begun += 1

    async def load(self) -> None:
        self.seen.append(self.users)
        if self.fails:
            raise self.fails
        self.is_loaded = True


async def test_a_model_is_loaded_at_its_first_use_and_stays_while_the_turn_lasts() -> None:
    coming = Coming()
    models = ModelRegistry({"late": Candidate(model("late", "Here."), on_demand=coming)})
    ran = await run(models, asked())
    assert ran.answer == "Here." and coming.seen == [1] and coming.users == 0
    assert [span.attributes["model"] for span in ran.trace.spans if span.name == "load"] == ["late"]
    again = await run(models, asked())
    assert not [span for span in again.trace.spans if span.name == "load"]


async def test_a_model_begins_to_load_when_somebody_is_about_to_ask() -> None:
    coming = Coming()
    models = ModelRegistry({"late": Candidate(model("late", "Here."), on_demand=coming)})
    await Agent(models, None, Toolbox()).warm(asked())
    assert coming.begun == 1 and not coming.seen


async def test_a_model_for_which_there_is_no_room_refuses_the_turn_before_its_first_event() -> None:
    coming = Coming(fails=NoRoom("There is no memory."))
    told = EventList()
    with pytest.raises(NoRoom):
        await Agent(ModelRegistry({"late": Candidate(model("late", "x"), on_demand=coming)}), None, Toolbox()).run(
            asked(), Trace(), told
        )
    assert not told.events and coming.users == 0


async def test_the_prompts_of_a_route_are_shared_with_all_of_its_models() -> None:
    small, large = model("small", "x"), model("large", "x")
    await Agent(model_registry(small, large, CASCADE), None, Toolbox()).share(asked())
    assert small.shared and large.shared
