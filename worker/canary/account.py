"""What is told of a canary to people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.canary.trial import Canary
from worker.canary.verdict import Answer, findings, judge


def account_of(canary: Canary, answers: Sequence[Answer]) -> dict[str, Any]:
    """As JSON has it. Takes a second for ten thousand answers."""
    verdict, treated = judge(answers, canary.margins), sum(each.treated for each in answers)
    return {
        "name": canary.name,
        "agent": canary.agent,
        "treatment": canary.treatment,
        "share": round(canary.share, 4),
        "state": canary.state,
        "reason": canary.reason,
        "conversations": {"control": len(answers) - treated, "treatment": treated},
        "verdict": verdict.decision,
        "verdict_reason": verdict.reason,
        "measures": [each.told() for each in findings(answers, canary.margins)],
    }
