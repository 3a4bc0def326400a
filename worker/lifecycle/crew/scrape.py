"""The Prometheus metrics of all members in one response: each sample is labelled with its process.

Behind one port a scrape reaches any member, so that member collects the others' metrics. The numbers are not added up:
a restarted process begins at zero, which Prometheus can detect only per process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from inference.remote.transport import Transport
from worker.lifecycle.crew.member import SUFFIX, Member

OTHERS_S = 2.0  # a scrape has 10 s by default, so a member that hangs is left out

log = logging.getLogger("firsttoken.crew")


async def scrape_all(member: Member, own: bytes, transport: Transport) -> bytes:
    """`own` are this member's metrics. Those of a member that does not respond are missing, as with any target."""
    names = [path.name.removesuffix(SUFFIX) for path in sorted(member.folder.glob(f"*{SUFFIX}"))]
    others = [name for name in names if name != member.name]
    texts = await asyncio.gather(*(_ask(member.folder / f"{name}{SUFFIX}", transport) for name in others))
    told = {member.name: own, **{name: text for name, text in zip(others, texts, strict=True) if text is not None}}
    return await asyncio.to_thread(merged, told)


async def _ask(path: Path, transport: Transport) -> bytes | None:
    try:
        answer = await transport.get(f"unix:{path}", "/metrics", OTHERS_S)
    except (ConnectionError, TimeoutError) as error:
        log.info("%s is missing from a scrape: %r", path.name, error)
        return None
    return answer.body if answer.status == 200 else None


def merged(told: dict[str, bytes]) -> bytes:
    """The texts of several processes as one, in which each sample has the label `process`. Takes milliseconds per
    process: call it in a thread. Pure.
    """
    families: dict[str, Metric] = {}
    for process, text in sorted(told.items()):
        for family in text_string_to_metric_families(text.decode()):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                kept.samples.append(sample._replace(labels={**sample.labels, "process": process}))
    return generate_latest(_Told(families))


class _Told(Collector):
    def __init__(self, families: dict[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
