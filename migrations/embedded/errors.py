"""The errors of the embedded Postgres, the reasons that Postgres gives, and remedies for file errors."""

from __future__ import annotations

import errno
import re

# "The database system is starting up" is sent to early clients and is not a reason.
FATAL = re.compile(r"\b(?:FATAL|PANIC|error):(?!\s*the database system is )\s*(.*)")
REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there or raise the quota",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "mount it writable",
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow more open files (sysctl fs.file-max)",
    errno.ENOMEM: "free some memory",
    errno.EIO: "check the disk",
}


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run here. The message is one sentence that says what to do."""


class StartInterrupted(EmbeddedPostgresError):
    """The start was abandoned because the process is about to exit."""


def reason_in(output: str) -> str:
    """The first fatal error in Postgres's output (others may follow from it), or else its last line; empty without
    output."""
    first = FATAL.search(output)
    return first[1] if first else (output.strip().splitlines() or [""])[-1]


def remedy(error: OSError, otherwise: str) -> str:
    """What to do about a file error; `otherwise` if there is no more specific advice."""
    return REMEDIES.get(error.errno or 0, otherwise)
