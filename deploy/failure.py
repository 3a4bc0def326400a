"""The one error of setting up."""


class SetupFailed(Exception):
    """The environment cannot be made here. The message says what to do."""
