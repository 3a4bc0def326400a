"""The table of limits in docs/api.md is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from agents.function_tool import NAME_CHARS_MAX
from agents.store.conversations import HISTORY_ITEMS_MAX
from inference.grammar.keywords import LENGTH_MAX
from inference.grammar.pattern import CHARS_MAX
from inference.grammar.schema import BRANCHES_MAX, OPTIONAL_MAX, PROPERTIES_MAX
from worker.config import Config
from worker.edge.guard import HEAD_BYTES_MAX
from worker.wire import limits
from worker.wire.completion_request import ECHOED_TOP_MAX, PROMPT_TOKENS_MAX, PROMPTS_MAX
from worker.wire.options import TOP_MAX

DOCS = Path(__file__).resolve().parents[3] / "docs/api.md"
ROW = re.compile(r"^\| (.+?) \| ([0-9,]+) \| .*\|$", re.MULTILINE)
OF_REQUESTS = {
    "levels of nesting in the body": "LEVELS_MAX",
    "values in the body, in objects and lists": "VALUES_MAX",
    "keys of one object": "KEYS_MAX",
    "items or messages of a request, also with `truncation`": "ITEMS_MAX",
    "content parts of a message": "PARTS_MAX",
    "characters of a text": "TEXT_CHARS_MAX",
    "characters of a compaction item": "SEALED_CHARS_MAX",
    "items added to a conversation at once": "ITEMS_ADD_MAX",
    "messages to a running response": "SAID_MAX",
    "files of a request": "FILES_MAX",
    "bytes of an image": "IMAGE_BYTES_MAX",
    "characters of the data URL of an image": "IMAGE_URL_CHARS_MAX",
    "characters of the name of a model": "MODEL_CHARS_MAX",
    "characters of the name of a file": "FILENAME_CHARS_MAX",
    "tools": "TOOLS_MAX",
    "characters of the grammar of a custom tool": "GRAMMAR_CHARS_MAX",
    "characters of a description": "DESCRIPTION_CHARS_MAX",
    "characters of the arguments of a call": "ARGUMENTS_CHARS_MAX",
    "bytes of a schema": "SCHEMA_BYTES_MAX",
    "containers within containers in a schema": "SCHEMA_DEPTH_MAX",
    "vector stores of a search": "STORES_MAX",
    "passages of a search": "RESULTS_MAX",
    "`max_tokens` and its like": "OUTPUT_TOKENS_MAX",
    "choices of a chat completion (`n`)": "CHOICES_MAX",
    "stop strings": "STOPS_MAX",
    "characters of a stop string": "STOP_CHARS_MAX",
    "entries of a `logit_bias`": "BIAS_MAX",
    "`top_k`": "TOP_K_MAX",
    "`chat_template_kwargs`": "TEMPLATE_VARIABLES_MAX",
    "pairs of `metadata`": "METADATA_PAIRS_MAX",
    "characters of a key in `metadata`": "METADATA_KEY_MAX",
    "characters of a value in `metadata`, or of a template variable": "METADATA_VALUE_MAX",
    "digits of a budget in `metadata`": "BUDGET_DIGITS_MAX",
    "characters of `prompt_cache_key` and `safety_identifier`": "KEY_CHARS_MAX",
    "characters of `user`": "USER_CHARS_MAX",
    "characters of a search in conversations": "SEARCH_CHARS_MAX",
    "entries of a page of a list": "PAGE_MAX",
    "entries of a page of models, for Anthropic's clients": "ANTHROPIC_PAGE_MAX",
    "entries of a page of files": "FILES_PAGE_MAX",
}
OTHERS = {
    "bytes of headers": HEAD_BYTES_MAX,
    "bytes of body (`--body-bytes`), decompressed": Config().body_bytes,
    "items of a stored conversation that is continued": HISTORY_ITEMS_MAX,
    "characters of the name of a function": NAME_CHARS_MAX,
    "properties of a schema": PROPERTIES_MAX,
    "optional properties of one object": OPTIONAL_MAX,
    "branches of a union": BRANCHES_MAX,
    "`minLength`, `maxItems` and other counts in a schema": LENGTH_MAX,
    "characters of a `pattern`": CHARS_MAX,
    "prompts of a text completion times `n`": PROMPTS_MAX,
    "tokens of all token arrays of a text completion": PROMPT_TOKENS_MAX,
    "likely tokens per position (`top_logprobs`, `logprobs`)": TOP_MAX,
    "likely tokens per position with `echo`": ECHOED_TOP_MAX,
}


def test_the_table_of_limits_is_that_of_the_code() -> None:
    section = DOCS.read_text("utf-8").partition("\n## Limits\n")[2].partition("\n## ")[0]
    told = {label: int(number.replace(",", "")) for label, number in ROW.findall(section)}
    assert told == {**{label: getattr(limits, name) for label, name in OF_REQUESTS.items()}, **OTHERS}


def test_the_table_names_every_limit_of_a_request() -> None:
    known = {name for name in vars(limits) if name.endswith("_MAX")} - {"NAME_CHARS_MAX"}
    assert known == set(OF_REQUESTS.values())
