import sys

# Here, because older versions cannot even read the modules beside it.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}: install one and select it, as in "
        "`make PYTHON=python3.12 run`"
    )
