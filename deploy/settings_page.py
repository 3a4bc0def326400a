"""docs/settings.md, generated from `worker.config`: `make docs` updates the page, and a test checks it."""

from __future__ import annotations

from itertools import groupby

from worker.config import settings
from worker.setting import Setting

INTRODUCTION = """\
# Settings

Each setting is a flag of `firsttoken serve` and an environment variable. A flag takes precedence over a variable, and a
variable over the default. `firsttoken serve --help` prints the same list. `make docs` writes this page; do not edit it.
"""
HEAD = "| flag | variable | default | meaning |\n|---|---|---|---|"


def settings_page() -> str:
    """The page as Markdown: a section per group of settings, a row per setting."""
    page = INTRODUCTION
    for title, members in groupby(settings(), key=lambda setting: setting.group.title):
        rows = (
            f"| `{setting.flag}` | `{setting.variable}` | {_default(setting)} | {setting.about.help} |"
            for setting in members
        )
        page += "\n".join([f"\n## {title}\n", HEAD, *rows, ""])
    return page


def _default(setting: Setting) -> str:
    """A value as code, an explanation as plain text."""
    return setting.default_text if setting.about.fallback or setting.default is None else f"`{setting.default_text}`"


if __name__ == "__main__":
    print(settings_page(), end="")
