"""Settings of what clients may ask of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from worker.setting import Group, among, setting

REFUSE, WAIT = "refuse", "wait"  # policies for a request that is expected to be late
HOUR_S, DAY_S = 3600.0, 86_400.0  # in an hour, a laptop with 5 tokens per second fills a context of 16,384


@dataclass(frozen=True)
class LimitSettings(Group, title="Limits"):
    queue: int = setting(
        64, "maximum number of generations in the queue; beyond that, requests get status 429", least=1, of_engines=True
    )
    turns: int = setting(
        64,
        "maximum number of turns in progress, of which a tenant may have half, and as many of the class batch in "
        "addition; beyond that, requests get status 429",
        least=1,
    )
    answer_tokens: int | None = setting(
        None,
        "maximum number of tokens of an answer, all steps of its agent together",
        fallback="as many as the context holds",
        least=1,
    )
    thought_tokens: int | None = setting(
        None,
        "maximum number of tokens of reasoning before an answer, which then begins; 0 for answers at once",
        fallback="as many as the answer",
        least=0,
    )
    answer_s: float = setting(
        HOUR_S, "seconds after which an answer is cut off, with its wait in the queue", least=1, most=DAY_S
    )
    late: str = setting(
        WAIT,
        "what happens to a request that is predicted to miss the TTFT target of its surface, unless its header "
        "says: refuse or wait",
        check=among(REFUSE, WAIT),
    )
    background: int = setting(
        4, "background responses in progress at once; 0 leaves all of them to other workers", least=0
    )
    batch_lines: int = setting(4, "batch lines in progress at once; 0 leaves all batches to other workers", least=0)
    body_bytes: int = setting(4 * 2**20, "maximum size of a request body in bytes", least=1024)
    request_mb: int = setting(
        256,
        "megabytes of buffered requests (bodies, files, waiting messages), of which a tenant may have half, and a file "
        "a quarter; beyond that, requests get status 429",
        least=1,
    )
    connections: int | None = setting(
        None,
        "maximum number of open connections; beyond that, a new one replaces the one that has been idle longest",
        fallback="256 less than the limit of open files (ulimit -n), at most 4096",
        least=1,
    )
    address_connections: int | None = setting(
        None,
        "maximum number of open connections per address; behind a reverse proxy all have the same address",
        fallback="half of --connections",
        least=1,
    )
    tenant_files_mb: int = setting(1024, "maximum total size of the uploaded files of a tenant in megabytes", least=1)

    @property
    def tenant_turns(self) -> int:
        return max(self.turns // 2, 1)
