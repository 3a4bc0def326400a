"""docs/settings.md says what the configuration says."""

from __future__ import annotations

from pathlib import Path

from deploy.settings_page import settings_page
from worker.config import settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_the_one_that_the_configuration_gives() -> None:
    assert PAGE.read_text("utf-8") == settings_page(), "run `make docs`"


def test_every_setting_has_one_row_with_its_default() -> None:
    rows = [line for line in settings_page().splitlines() if line.startswith("| `--")]
    assert [row.split("`")[1] for row in rows] == [setting.flag for setting in settings()]
    assert "| `--port` | `FIRSTTOKEN_PORT` | `8080` | port to listen on; 0 picks a free one |" in rows
    assert not [row for row in rows if str(Path(__file__).parents[2]) in row], "a path of this machine"
