"""GGUF files that differ from a bundled one in what a test is about, and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TOKENS, KINDS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.chat_template"

KINDS_OF_FACTS = {
    float: gguf.GGUFValueType.FLOAT32,
    int: gguf.GGUFValueType.UINT32,
    str: gguf.GGUFValueType.STRING,
}


def opened(path: Path) -> gguf.GGUFReader:
    """What stands in a file, not to be changed. To read the names of all tokens takes half a second, once."""
    return _opened(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(path: Path, _changed_ns: int) -> gguf.GGUFReader:
    return gguf.GGUFReader(path)


def fact(path: Path, name: str) -> Any:
    """A value of a file's header."""
    return opened(path).fields[name].contents()


def write_variant(source: Path, target: Path, facts: Mapping[str, Any], *, rows: int | None = None) -> None:
    """A copy of `source` with other or more facts; the matrices with a row a token get `rows` rows, new ones zeros."""
    reader = opened(source)
    tokens = len(reader.fields[TOKENS].data)
    writer = gguf.GGUFWriter(target, fact(source, "general.architecture"))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, facts.get(name, field.contents()), field.types[0], sub_type=element)
    for name in facts.keys() - reader.fields.keys():
        writer.add_key_value(name, facts[name], KINDS_OF_FACTS[type(facts[name])])
    for tensor in reader.tensors:
        data = tensor.data
        if rows is not None and tensor.data.shape[0] == tokens:
            data = np.concatenate([data, np.zeros((max(0, rows - tokens), *data.shape[1:]), data.dtype)])[:rows]
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
