"""The error that ends the setup."""


class SetupFailed(Exception):
    """The environment cannot be set up here. The message says what to do."""
