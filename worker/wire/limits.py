"""Limits on the content of one request. Everything has a limit, with its reason."""

from __future__ import annotations

from agents.function_tool import NAME_CHARS_MAX

ID_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"  # all ids that we issue match it; nothing else reaches a query
NAME_PATTERN = rf"^[a-zA-Z0-9_.-]{{1,{NAME_CHARS_MAX}}}$"  # of functions; dotted ones are Python's

VALUES_MAX = 200_000  # in one body: 10,000 items with calls and results; validating them takes a thread a second
KEYS_MAX = 10_000  # of one object: each unknown one is an error to describe; a schema has 5,000 properties at most
LEVELS_MAX = 100  # of nesting in one body: far more than any schema needs, far less than the recursion limit
TEXT_CHARS_MAX = 1_000_000  # about a quarter of a million tokens: more than any supported context
ITEMS_MAX = 10_000  # items or messages of one request: days of an agent's work, more than any context holds
ITEMS_ADD_MAX = 20  # items of one call to a conversation, the limit of the public contract
SAID_MAX = 16  # messages to a running response: each is one more that its successor has to answer
PARTS_MAX = 256  # content parts of one message
SEALED_CHARS_MAX = 4 * TEXT_CHARS_MAX  # of a summary that comes back with its recent turns
FILES_MAX = 16  # of one request; each is read before the first token
IMAGE_BYTES_MAX = 20_000_000  # it is stored with its message, which is read with each turn
IMAGE_URL_CHARS_MAX = 28_000_000  # the same in base64; the limit of bodies is usually below it
MODEL_CHARS_MAX = 200  # of the name of a model: an error says it
FILENAME_CHARS_MAX = 255  # the limit of file systems

TOOLS_MAX = 10_000  # as in catalogues of Anthropic; OpenAI allows 128. The context of a model takes far fewer
SCHEMA_DEPTH_MAX = 64  # containers within containers: an object takes two, and six with a list in a union
SCHEMA_BYTES_MAX = 400_000  # the most properties that a grammar takes, each with a sentence about it
GRAMMAR_CHARS_MAX = 10_000  # of the input of a custom tool: ten times that of patches; compiling takes 0.4 s at most
DESCRIPTION_CHARS_MAX = 32_000  # coding agents describe a tool on several pages
ARGUMENTS_CHARS_MAX = 2**20  # as long as those that a model may write
STORES_MAX = 16  # vector stores of one search
RESULTS_MAX = 50  # passages of one search

OUTPUT_TOKENS_MAX = 1_000_000  # the model's context is the real limit; this one excludes absurd numbers
CHOICES_MAX = 8  # of one completion; each occupies KV cache while it is generated
STOPS_MAX = 16  # agents and evaluation harnesses send more than OpenAI's four; each is searched for in every delta
STOP_CHARS_MAX = 256  # so much of an answer may be held back
TOP_K_MAX = 1_000_000  # above every vocabulary
TEMPLATE_VARIABLES_MAX = 16  # that a request sets; templates have one to three
BIAS_MAX = 1_024  # entries of a logit bias, applied to every token

METADATA_PAIRS_MAX = 16
METADATA_KEY_MAX = 64
METADATA_VALUE_MAX = 512
BUDGET_DIGITS_MAX = 9  # of a budget in metadata: more than any turn takes
KEY_CHARS_MAX = 64  # prompt_cache_key, safety_identifier, stream_id
USER_CHARS_MAX = 256

SEARCH_CHARS_MAX = 200  # of a search in conversations: a line of words

PAGE_DEFAULT = 20
PAGE_MAX = 100
ANTHROPIC_PAGE_MAX = 1000  # the limit of that contract
FILES_PAGE_MAX = 1000  # files are asked for all at once: half a megabyte
