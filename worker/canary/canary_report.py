"""The report of a canary, for users and programs."""

from __future__ import annotations

from typing import Any

from worker.canary.trial import Canary
from worker.canary.verdict import Evidence, findings, judge


def canary_report(canary: Canary, evidence: Evidence) -> dict[str, Any]:
    """As JSON. Takes a second for ten thousand answers."""
    verdict = judge(evidence, canary.margins)
    return {
        "name": canary.name,
        "agent": canary.agent,
        "treatment": canary.treatment,
        "share": round(canary.share, 4),
        "state": canary.state,
        "reason": canary.reason,
        "conversations": {
            "control": evidence.conversations(treated=False),
            "treatment": evidence.conversations(treated=True),
        },
        "verdict": verdict.decision,
        "verdict_reason": verdict.reason,
        "measures": [each.told() for each in findings(evidence, canary.margins)],
    }
