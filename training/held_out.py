"""Cases for `firsttoken eval suite` out of functions that training never sees.

python -m training.held_out TARGET.jsonl [CASES OF EACH KIND]
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.conversations import Conversations
from training.values import Unfit

KINDS = ("simple", "multiple", "parallel", "parallel-multiple", "irrelevance")
TOKENS_MAX = 320
SERVICES_EVERY = 4  # every so many-th case has functions of real services


def main(target: str, count: str = "40") -> None:
    """`count` cases of each kind, after the line that sets the defaults."""
    conversations = Conversations("held-out", "test")
    cases = [_case(conversations, kind, number) for kind in KINDS for number in range(int(count))]
    suite = {"suite": {"name": "held-out", "max_tokens": TOKENS_MAX}}
    Path(target).write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in (suite, *cases)))


def _case(made: Conversations, kind: str, number: int) -> dict[str, Any]:
    pool = made.everyday if number % SERVICES_EVERY else made.services
    several = {"parallel": made.several, "parallel-multiple": made.different, "irrelevance": made.declined}
    while True:
        size = 1 if kind in ("simple", "parallel") else made.choose.randint(2, 4)
        tools = [function.tool(made.choose) for function in made.choose.some(pool, size)]
        with suppress(Unfit):
            asked, answer, *_ = several.get(kind, made.one)(tools)
            return {
                "id": f"{kind}-{number + 1}",
                "group": kind,
                "input": asked["content"],
                "tools": [tool.schema["function"] for tool in tools],
                "expect": {"calls": [call["function"] for call in answer.get("tool_calls", ())]},
            }


if __name__ == "__main__":
    main(*sys.argv[1:])
