"""The database: its schema as plain SQL, the runner, the embedded server, the pool. Knows nothing of the other packages."""
