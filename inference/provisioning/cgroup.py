"""The memory that the control groups of this process leave it: limits of containers, services and slices (Linux).

A limit of any group above counts as well. Memory that only caches files does not: the kernel gives it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
UNLIMITED_BYTES = 2**60  # version 1 says "no limit" with a number of about that size


def memory_free(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """Bytes until the tightest limit; None without one, or where nobody tells."""
    return min((free for group in _groups(mount, own) if (free := _free(group)) is not None), default=None)


def _groups(mount: Path, own: Path) -> Iterator[Path]:
    """The folders of this process's groups, innermost first. In a container the path may be that of the host, and the
    group itself is the root of what is mounted."""
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        group = root / path.lstrip("/")
        while group != root and root in group.parents:
            yield group
            group = group.parent
        yield root


def _free(group: Path) -> int | None:
    """What is below the limits of one group, in the words of version 2 or of version 1."""
    limits = [
        int(text) for name in ("memory.max", "memory.high", "memory.limit_in_bytes") if (text := _number(group, name))
    ]
    used = _number(group, "memory.current") or _number(group, "memory.usage_in_bytes")
    limit = min(limits, default=UNLIMITED_BYTES)
    if limit >= UNLIMITED_BYTES or not used:
        return None
    return max(0, limit - max(0, int(used) - _file_cache(group)))


def _file_cache(group: Path) -> int:
    facts = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    return sum(int(facts.get(f"total_{name}", facts.get(name, 0))) for name in ("inactive_file", "active_file"))


def _number(group: Path, name: str) -> str:
    """As digits; empty for a file that is not there, or says "max"."""
    text = _text(group / name).strip()
    return text if text.isdigit() else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
