"""docs/settings.md, generated from `worker.config`: `make docs` updates the page, and a test checks it."""

from __future__ import annotations

from itertools import groupby

from worker.config import settings

INTRODUCTION = """\
# Settings

Each setting is a flag of `firsttoken serve` and an environment variable. A flag takes precedence over a variable, and a
variable over the default. `firsttoken serve --help` prints the same list. `make docs` writes this page; do not edit it.
"""
HEAD = "| flag | variable | default | meaning |\n|---|---|---|---|"


def settings_page() -> str:
    """The page as Markdown: a section per group of settings, a row per setting."""
    page = INTRODUCTION
    for title, members in groupby(settings(), key=lambda setting: setting.about.group):
        rows = (
            f"| `{setting.flag}` | `{setting.variable}` | {_default(setting.default_text, setting.about.fallback)} "
            f"| {setting.about.help} |"
            for setting in members
        )
        page += "\n".join([f"\n## {title}\n", HEAD, *rows, ""])
    return page


def _default(text: str | None, in_words: str | None) -> str:
    """The default of a setting: a value as code, an explanation as plain text."""
    return in_words or ("" if text is None else f"`{text}`")


if __name__ == "__main__":
    print(settings_page(), end="")
