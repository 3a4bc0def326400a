"""Who may log in: the kernel says who connects, so there is no password to keep, to lose or to read in a process list.

The files lie beside the data, where the server's account cannot write, and are written anew for each start. Those in
the data folder, which once trusted everybody, do not count.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from migrations.embedded.account import ROOT, SHARED, Account
from migrations.embedded.placement import Placement

MAP = "firsttoken"
RULES = f"local all all peer map={MAP}\n"
READABLE = 0o644  # by the server; there is nothing secret in them


def names_for(account: Account) -> list[str]:
    """The accounts of the system that may log in: root, which could anyway, and whoever owns the data, unless that is
    an account that others share."""
    names = {Account(ROOT, ROOT).name, *filter(None, [account.entry])}
    return sorted(names - {SHARED})


def write_access(place: Placement) -> dict[str, str]:
    """The settings that make the server follow the rules, which are written down first."""
    _write(place.rules, RULES)
    _write(place.names, "".join(f'{MAP} "{name}" all\n' for name in names_for(place.account)))
    return {"hba_file": str(place.rules), "ident_file": str(place.names)}


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        new.write_text(text)
        new.chmod(READABLE)  # whatever the umask
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
