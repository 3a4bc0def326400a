"""The actor of a command, for the audit log and for operators."""

from __future__ import annotations

import os
import pwd

from worker.auth.audit import Actor
from worker.auth.principal import NOBODY, Principal
from worker.auth.scope import Scope

EVERYBODY = Principal(NOBODY, "command", frozenset({Scope.OPS}), "api_key")


def command_actor() -> Actor:
    """The account on this machine, whatever the environment says."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as an account without a name
        name = f"uid {os.getuid()}"
    return Actor("command", name)
