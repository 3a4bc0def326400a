"""The decision of a route about one step. Pure: all of its inputs are in the situation."""

from __future__ import annotations

from dataclasses import dataclass

from agents.routing.policy import Cascade, Doubt, Fixed, Hold, Policy, Rules, Steps, names
from agents.routing.situation import Situation

NO_HOLD = Hold()


@dataclass(frozen=True, slots=True)
class Decision:
    """`model` begins the step. With a `fallback` it is on trial: its output is held back until it is clear whether the
    other one has to take over. `doubt` None: any answer is the other model's, and only tool calls are its own.
    """

    model: str
    reason: str
    fallback: str = ""
    hold: Hold = NO_HOLD
    doubt: Doubt | None = None
    hedge: bool = False

    @property
    def is_trial(self) -> bool:
        return bool(self.fallback)


def decide(policy: Policy, situation: Situation) -> Decision:
    match policy:
        case Fixed():
            return _cheapest(names(policy.model), "fixed", situation)
        case Rules():
            for number, rule in enumerate(policy.rules, 1):
                if rule.when.hold(situation):
                    return _cheapest(names(rule.model), f"rule {number}", situation)
            return _cheapest(names(policy.otherwise), "otherwise", situation)
        case Steps():
            return _by_step(policy, situation)
        case Cascade():
            return _cascade(policy, situation)


def _cheapest(models: tuple[str, ...], reason: str, situation: Situation) -> Decision:
    return Decision(situation.cheapest(models), reason if len(models) == 1 else f"{reason}, the cheapest")


def _by_step(policy: Steps, situation: Situation) -> Decision:
    if not situation.offers_tools:
        return Decision(policy.answer, "an answer")
    if policy.tools == policy.answer or _no_dearer(policy.answer, policy.tools, situation):
        return Decision(policy.answer, "no dearer")
    return Decision(policy.tools, "a step with tools", policy.answer, policy.hold)


def _cascade(policy: Cascade, situation: Situation) -> Decision:
    if policy.first == policy.then or _no_dearer(policy.then, policy.first, situation):
        return Decision(policy.then, "no dearer")
    return Decision(policy.first, "cascade", policy.then, policy.hold, policy.doubt, policy.hedge)


def _no_dearer(better: str, model: str, situation: Situation) -> bool:
    """Whether the better model costs no more than the other one here, for example with the conversation in its
    cache.
    """
    known = better in situation.costs and model in situation.costs
    return known and situation.price(better) <= situation.price(model)
