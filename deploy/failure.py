"""The error of setup."""


class SetupFailed(Exception):
    """The environment cannot be set up here. The message says what to do."""
