"""Responses in the making: apart from the connections that asked for them, so that any number can read one."""

from __future__ import annotations

from worker.runs.registry import Runs
from worker.runs.run import Run

__all__ = ["Run", "Runs"]
