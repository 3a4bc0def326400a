"""Search as a tool: the model requests passages in the middle of a turn."""

from __future__ import annotations

from agents.prompt import numbered
from agents.tool import Tool, ToolContext, ToolError, tool
from inference.trace import Trace
from retrieval.errors import RetrievalError
from retrieval.query import Query, Searcher

DEFAULT_STORES = ("docs",)  # for requests without a store; filled at the first start
PASSAGES_MAX = 5


def search_documents(searcher: Searcher, default_stores: tuple[str, ...]) -> Tool:
    async def search_documents(query: str, context: ToolContext) -> str:
        """Search the user's documents and return passages.

        Args:
            query: What to search for
        """
        try:
            wanted = Query(context.tenant_id, query, context.stores or default_stores, PASSAGES_MAX)
            passages = await searcher.retrieve(wanted, Trace())
        except RetrievalError as error:
            raise ToolError(str(error)) from None
        return numbered((context.cite(passage), passage) for passage in passages) or "No passages found."

    return tool(idempotent=True)(search_documents)
