"""The command `firsttoken`, whose prompts do not follow from how fast the machine is.

Else what a model says of its passages would: with one of them it is sure, and with two it may hesitate.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from tests.serving import run_command

# Tokens of passages that there is time for: those of a machine with AVX2 and nothing else to do, which reads 265 in a
# second and has searched for 40 ms.
PASSAGE_TOKENS = 80


def be_patient() -> None:
    """From now on searches leave no stage out, and prompts of turns with a target get passages of PASSAGE_TOKENS."""
    from agents.search import passage_tokens_max
    from agents.turn import Turn
    from tests.retrieval.patience import patient

    def the_same(turn: Turn, began_ns: int, token_s: float | None) -> int | None:
        return None if passage_tokens_max(turn, began_ns, token_s or 1.0) is None else PASSAGE_TOKENS

    patch("worker.start.RetrievalConfig", patient).start()
    for module in ("agents.agent", "agents.opener"):
        patch(f"{module}.passage_tokens_max", the_same).start()


if __name__ == "__main__":
    sys.exit(run_command(be_patient))
