"""`python -m tests.inference.dying`: what a native abort looks like from outside."""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.abort()
