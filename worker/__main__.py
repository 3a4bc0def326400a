"""`python -m worker` is the command `firsttoken`."""

from __future__ import annotations

import sys

from worker.cli.main import main

sys.exit(main())
