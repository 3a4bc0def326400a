"""Turns with tools: one call, several at once, one after the other, and everything that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from agents.prompt import CONCLUDE
from agents.tool import ToolError
from training.conversations import builtin, lexicon
from training.conversations.invented import Invented, error, invent
from training.conversations.names import Names
from training.conversations.parameter import spaced
from training.conversations.request import Request, Several, Tool, said
from training.conversations.scene import Scene
from training.conversations.tools import Offered

JOINTS_TWO = (" and ", ", and ", " and also ", "; ", ". Also ", " and ")
JOINTS_THREE = (", ", "; ")
DRILLED_CALLS = (1, 1, 1, 2, 2, 3)  # of one request, as shares
LIST_SHARE = 0.4  # of the parallel calls are one question about several things
TRIPLE_SHARE = 0.3
FAILED_SHARE = 0.1  # of the parallel calls have one that failed
FOLLOWED_MAX = 4  # questions after one that go on with its result
# Of single, parallel, sequential, followed, failing, incomplete, concluded and unsuited turns. With the server's own
# tools alone a single call is soon known by heart, and what has to be learnt is in the others.
SHARES = (0.13, 0.47, 0.21, 0.03, 0.05, 0.05, 0.03, 0.03)
SHARES_OF_OWN = (0.1, 0.34, 0.3, 0.14, 0.05, 0.0, 0.04, 0.03)
OUT_OF_CALLS = "I could not finish that because the tool budget is used up."
NO_TOOL = "I do not have a tool for that."


def turn(names: Names, scene: Scene, tools: Offered) -> None:
    """One exchange, whatever the tools allow."""
    shares = SHARES if tools.invented else SHARES_OF_OWN
    kinds = (single, parallel, sequential, followed, failing, incomplete, concluded, unsuited)
    (kind,) = names.random.choices(kinds, shares)
    kind(names, scene, tools)


def drill(names: Names, scene: Scene, tools: Offered) -> bool:
    """Calls alone, without what comes back, of tools that were not called before: each has to be found in its schema,
    where otherwise the call before could be copied. False when all have been called."""
    fresh = unused(scene, tools)
    if not fresh:
        return False
    count = min(len(fresh), names.pick(DRILLED_CALLS))
    requests = [tool.request(names) for tool in names.random.sample(fresh, count)]
    scene.user(said(names, _joined(names, [request.ask for request in requests])))
    scene.calls(*(request.call for request in requests))
    return True


def unused(scene: Scene, tools: Offered) -> list[Tool]:
    called = {call.name for message in scene.messages for call in message.tool_calls}
    return [tool for tool in tools.tools if tool.name not in called]


def single(names: Names, scene: Scene, tools: Offered) -> None:
    request = names.pick(unused(scene, tools) or tools.tools).request(names)
    scene.user(said(names, request.ask))
    _answered(scene, [request])


def parallel(names: Names, scene: Scene, tools: Offered) -> None:
    count = 3 if names.chance(TRIPLE_SHARE) else 2
    answering = tools.answering or list(tools.tools)
    if names.chance(LIST_SHARE):
        several = _listed(names, tools, count)
        if several:
            scene.user(said(names, several.ask))
            _answered(scene, several.requests)
            return
    requests = [names.pick(answering).request(names) for _ in range(count)]
    if names.chance(FAILED_SHARE):
        requests[names.random.randrange(count)] = _wrong(names, tools)
    scene.user(said(names, _joined(names, [request.ask for request in requests])))
    _answered(scene, requests)


def _listed(names: Names, tools: Offered, count: int) -> Several | None:
    for tool in names.random.sample(tools.answering, len(tools.answering)):
        if several := tool.several(names, count):
            return several
    return None


def _joined(names: Names, asks: Sequence[str]) -> str:
    if len(asks) < 3:
        return names.pick(JOINTS_TWO).join(asks)
    joint = names.pick(JOINTS_THREE)
    return f"{asks[0]}{joint}{asks[1]}{names.pick((' and ', ', and ', joint))}{asks[2]}"


def sequential(names: Names, scene: Scene, tools: Offered) -> None:
    """The second call takes what the first returned."""
    pairs = [_converted_then_computed, _computed_then_converted] if tools.has("calculator", "convert_units") else []
    chains = [tool for tool in tools.invented if tool.takes_one_text]
    if chains and len(tools.invented) > 1 and (not pairs or names.chance(0.5)):
        _chained(names, scene, tools)
    elif pairs:
        names.pick(pairs)(names, scene)
    else:
        single(names, scene, tools)


def _converted_then_computed(names: Names, scene: Scene) -> None:
    first = builtin.CONVERT_UNITS.request(names)
    second = builtin.further(names, builtin.value_of(first))
    ask = f"{first.ask}{names.pick((' and ', ', then ', ' and then '))}{second.ask}"
    _in_turn(names, scene, ask, first, second)


def _computed_then_converted(names: Names, scene: Scene) -> None:
    first = builtin.CALCULATOR.request(names)
    value = builtin.value_of(first)
    source, target = names.random.sample(names.pick(lexicon.UNITS), 2)
    ask = f"{first.ask}{names.pick((' and ', ', then ', ' and then '))}convert the result from {source} to {target}"
    try:
        second = builtin.conversion_of(ask, value, source, target)
    except ToolError:
        _converted_then_computed(names, scene)
    else:
        _in_turn(names, scene, ask, first, second)


def _in_turn(names: Names, scene: Scene, ask: str, first: Request, second: Request) -> None:
    scene.user(said(names, ask))
    scene.calls(first.call)
    scene.result(first.result)
    _answered(scene, [second])


def _chained(names: Names, scene: Scene, tools: Offered) -> None:
    second = names.pick([tool for tool in tools.invented if tool.takes_one_text])
    first = names.pick([tool for tool in tools.invented if tool is not second])
    wanted = second.parameters[0]
    value = str(wanted.make(names)[0])
    verb = names.pick(("get", "check", "look up", "use it to get", "find"))
    end = names.pick((" for it", " with the result", f" for that {wanted.title}"))
    request = first.request(names)
    ask = f"{request.ask}{names.pick((' and then ', ', then '))}{verb} the {second.topic}{end}"
    returned = json.dumps({wanted.name: value}, ensure_ascii=False) if names.chance(0.8) else value
    last = second.called(names, ask, {wanted.name: value})
    scene.user(said(names, ask))
    scene.calls(request.call)
    scene.result(returned)
    _answered(scene, [last])


def followed(names: Names, scene: Scene, tools: Offered) -> None:
    """One question after the other, each about what the one before brought, or the same about something else."""
    if tools.has("current_time") and names.chance(0.3):
        requests = [builtin.CURRENT_TIME.request(names)]
        requests += [builtin.elsewhere(names) for _ in range(names.random.randint(1, FOLLOWED_MAX))]
    elif tools.has("calculator"):
        starts = [tool for tool in (builtin.CALCULATOR, builtin.CONVERT_UNITS) if tools.has(tool.name)]
        requests = [names.pick(starts).request(names)]
        for _ in range(names.random.randint(1, FOLLOWED_MAX)):
            value = builtin.value_of(requests[-1])
            if not builtin.teaches(names, value):
                break
            further = builtin.further(names, value)
            requests.append(replace(further, ask=names.pick(("", "", "now ", "then ", "and ")) + further.ask))
    else:
        requests = [names.pick(tools.tools).request(names)]
    for request in requests:
        scene.user(said(names, request.ask))
        _answered(scene, [request])


def failing(names: Names, scene: Scene, tools: Offered) -> None:
    request = _wrong(names, tools)
    scene.user(said(names, request.ask))
    _answered(scene, [request])


def _wrong(names: Names, tools: Offered) -> Request:
    """A call that comes back with an error: one that the server's tools really say, or an invented one."""
    if tools.invented and names.chance(0.7):
        tool = names.pick(tools.invented)
        return _broken(tool.request(names), tool, error(names, tool))
    for _ in range(4):
        own, request = builtin.failed(names)
        if tools.has(own.name):
            return request
    return names.pick(tools.tools).request(names)


def _broken(request: Request, tool: Invented, error: str) -> Request:
    return Request(request.ask, request.call, f"Error: {error}", builtin.sorry(tool.name, error))


def incomplete(names: Names, scene: Scene, tools: Offered) -> None:
    """Something is missing: the model asks for it, and calls once it knows."""
    if not tools.invented:
        single(names, scene, tools)
        return
    tool = names.pick(tools.invented)
    missing = tool.parameters[0]
    without = tool.request(names, without=missing)
    if without.call.arguments != "{}":
        single(names, scene, tools)
        return
    scene.user(said(names, without.ask))
    scene.answer(f"Please tell me the {missing.title}.")
    value, phrase = missing.make(names)
    plain = str(value) if not isinstance(value, bool) else "yes" if value else "no"
    scene.user(names.pick((plain, plain, phrase, f"{missing.title}: {plain}")))
    _answered(scene, [tool.called(names, "", {missing.name: value})])


def concluded(names: Names, scene: Scene, tools: Offered) -> None:
    """The budget is used up: with what the last call brought, or with nothing."""
    request = names.pick(tools.tools).request(names)
    scene.user(said(names, request.ask))
    if names.chance(0.6):
        scene.calls(request.call)
        scene.result(f"{request.result}\n{CONCLUDE}")
        scene.answer(f"{request.answer}.")
    else:
        scene.notice(CONCLUDE)
        scene.answer(OUT_OF_CALLS)


def unsuited(names: Names, scene: Scene, tools: Offered) -> None:
    """What no tool here can do. A search fits everything, so then there is nothing unsuited."""
    other = invent(names)
    known = " ".join(f"{tool.name} {spaced(tool.name)}" for tool in tools.tools)
    if tools.has("search_documents") or any(word in known for word in other.topic.split()):
        single(names, scene, tools)
    else:
        scene.user(said(names, other.request(names).ask))
        scene.answer(NO_TOOL)


def _answered(scene: Scene, requests: Sequence[Request]) -> None:
    scene.calls(*(request.call for request in requests))
    for request in requests:
        scene.result(request.result)
    scene.answer(". ".join(request.answer for request in requests) + ".")
