"""The built-in tools: one per file, but for the search, which stands beside the one before the answer."""

from __future__ import annotations

from agents.search import search_documents
from agents.toolbox import Toolbox
from agents.tools.calculator import calculator
from agents.tools.convert_units import convert_units
from agents.tools.current_time import current_time
from retrieval.query import Searcher

NAMES = ("calculator", "current_time", "convert_units", "search_documents")


def builtin_toolbox(retriever: Searcher | None) -> Toolbox:
    """All built-in tools; without a retriever there is no search."""
    searching = [search_documents(retriever)] if retriever else []
    return Toolbox([calculator, current_time, convert_units, *searching])
