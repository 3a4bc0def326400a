"""Numbers of bytes for people: decimal units, as disks and model hubs count."""

from __future__ import annotations


def in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
