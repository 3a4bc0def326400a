"""Property tests here run beside everything else on a busy machine: how long one example takes says nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
