"""The input of a batch: a file of lines, validated before any of them is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import orjson

from worker.runs.batches.batch_store import NewLine
from worker.wire.batches import LineError, read_line
from worker.wire.limits import LEVELS_MAX

LINES_MAX = 50_000  # the limit of the public contract
ERRORS_MAX = 100  # that are reported; with more, the program that wrote the file is broken
BOM = b"\xef\xbb\xbf"


async def lines_of(pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes | None]:
    """The lines of a file that arrives in chunks; None stands for a line of more than `bytes_max` bytes."""
    rest, too_long = b"", False
    async for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line = rest + piece[start:end]
            yield None if too_long or len(line) > bytes_max else line
            rest, too_long, start = b"", False, end + 1
        if not too_long:
            rest += piece[start:]
            if len(rest) > bytes_max:
                rest, too_long = b"", True
    if rest or too_long:
        yield None if too_long else rest


@dataclass(slots=True)
class Checked:
    """What was read of a file so far. `model_error` says what is wrong with a line's model, if anything."""

    endpoint: str
    bytes_max: int
    model_error: Callable[[str | None], str | None]
    count: int = 0  # of lines that are not blank
    is_hopeless: bool = False  # further reading reveals nothing new
    errors: list[LineError] = field(default_factory=list)
    models: set[str | None] = field(default_factory=set)
    _custom_ids: set[str] = field(default_factory=set)

    @property
    def model(self) -> str | None:
        """The model that all lines name."""
        return next(iter(self.models)) if len(self.models) == 1 else None

    def take(self, number: int, raw: bytes | None) -> NewLine | None:
        """The line, unless it is blank or has an error, which is recorded."""
        if number > LINES_MAX:
            self.errors.append(LineError("too_many_lines", f"The file has more than {LINES_MAX} lines."))
            self.is_hopeless = True
            return None
        if raw is not None and not raw.removeprefix(BOM).strip():
            return None
        self.count += 1
        read = self._read(number, raw)
        if isinstance(read, LineError):
            self.errors.append(read._replace(line=number))
            self.is_hopeless = len(self.errors) >= ERRORS_MAX
            return None
        return read

    def _read(self, number: int, raw: bytes | None) -> NewLine | LineError:
        if raw is None:
            return LineError("line_too_long", f"The line is longer than {self.bytes_max} bytes.")
        line = read_line(raw.removeprefix(BOM) if number == 1 else raw, self.endpoint)
        if isinstance(line, LineError):
            return line
        if line.custom_id in self._custom_ids:
            message = "Another line has this custom_id: it must be unique in the file."
            return LineError("duplicate_custom_id", message, "custom_id")
        self._custom_ids.add(line.custom_id)
        model = line.body.get("model")
        if model is None or isinstance(model, str):  # everything else is reported by the line's own answer
            if model not in self.models and (wrong := self.model_error(model)):
                return LineError("model_not_found", wrong, "body.model")
            self.models.add(model)
        try:
            return NewLine(number, line.custom_id, orjson.dumps(line.body))
        except orjson.JSONEncodeError:  # it reads more levels than it writes
            return LineError("invalid_value", f"Invalid 'body': it nests more than {LEVELS_MAX} levels deep.", "body")

    def close(self) -> None:
        if not self.count and not self.errors:
            self.errors.append(LineError("empty_file", "The file has no lines."))
