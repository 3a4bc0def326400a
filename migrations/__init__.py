"""The database: its schema as plain SQL, the runner, the embedded server, the pool."""
