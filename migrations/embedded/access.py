"""Who may log in: the kernel identifies the peer, so no password can be stored, lost or seen in a process list.

The files are next to the data folder, where the server's account cannot write, and are rewritten at each start. Those
inside the data folder, which once trusted everybody, are not used.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from migrations.embedded.account import ROOT, SHARED, Account
from migrations.embedded.placement import Placement

MAP = "firsttoken"
RULES = f"local all all peer map={MAP}\n"
READABLE = 0o644  # for the server; they contain no secrets


def names_for(account: Account) -> list[str]:
    """The system accounts that may log in: root, which could anyway, and the owner of the data, unless that is an
    account shared with others."""
    names = {Account(ROOT, ROOT).name, *filter(None, [account.entry])}
    return sorted(names - {SHARED})


def write_access(place: Placement) -> dict[str, str]:
    """Writes the rules, and returns the settings that make the server use them."""
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
