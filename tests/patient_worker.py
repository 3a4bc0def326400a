"""The command `firsttoken`, with searches that leave no stage out, however slow the machine."""

from __future__ import annotations

import sys
from unittest.mock import patch

from tests.serving import run_command


def wait_for_every_stage() -> None:
    from tests.retrieval.conftest import patient

    patch("worker.start.RetrievalConfig", patient).start()


if __name__ == "__main__":
    sys.exit(run_command(wait_for_every_stage))
