"""The control groups of this process (containers, services, slices; Linux), in the formats of versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """The folders of this process's groups, innermost first. In a container the path may be the host's, and the group
    itself is the root of the mount."""
    for line in text_of(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controller if controllers else mount
        group = root / path.lstrip("/")
        while group != root and root in group.parents:
            yield group
            group = group.parent
        yield root


def text_of(path: Path) -> str:
    """Empty if the file cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """None if the file is missing or says "max" or -1."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None
