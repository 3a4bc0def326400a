"""The installed version."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("firsttoken")
