"""Who waits for the disk, and for how long."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from inference.core import Sampling
from inference.engine.detokenizer import TextStream
from inference.engine.sampler import Sampler
from inference.kvcache.arrivals import WAIT_S_MAX, Arrivals
from inference.kvcache.disk import Found
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry
from inference.request import Request
from inference.scope import CacheScope

S = 10**9
ENTRY = Entry(tuple(range(200)), CacheScope(""), np.zeros(1, np.uint8))


def request() -> Request:
    return Request([*range(200), 7], 5, Sampler(Sampling()), TextStream([]), CacheScope(""))


class SlowDisk:
    """Has the first 192 tokens of every prompt, and hands them over when the test says so."""

    def __init__(self) -> None:
        self.readings: list[Future[Entry | None]] = []

    def match(self, tokens: list[int], scope: CacheScope) -> Found | None:
        return Found("name", 192, scope)

    def read(self, found: Found) -> Future[Entry | None]:
        self.readings.append(Future())
        return self.readings[-1]


def test_a_request_waits_until_its_beginning_is_read() -> None:
    disk, one = SlowDisk(), request()
    arrivals = Arrivals(disk)
    assert arrivals.hold(one, held=0, token_s=0.01, now_ns=0) is not None
    assert (arrivals.ready(0), arrivals.read(), arrivals.requests) == ([], [], [one])
    disk.readings[0].set_result(ENTRY)
    assert (arrivals.ready(0), arrivals.read(), arrivals.requests) == ([one], [ENTRY], [])


def test_it_waits_no_longer_than_computing_would_take_and_what_comes_late_is_kept() -> None:
    disk, one = SlowDisk(), request()
    arrivals = Arrivals(disk)
    arrivals.hold(one, held=92, token_s=0.01, now_ns=0)
    assert arrivals.wait_s(0) == 1.0
    assert (arrivals.ready(S - 1), arrivals.ready(S)) == ([], [one])
    disk.readings[0].set_result(ENTRY)
    assert arrivals.read() == [ENTRY]
    assert arrivals.wait_s(S) is None


def test_there_is_a_bound_however_slow_the_model() -> None:
    arrivals = Arrivals(SlowDisk())
    arrivals.hold(request(), held=0, token_s=10.0, now_ns=0)
    assert arrivals.wait_s(0) == WAIT_S_MAX


def test_what_memory_holds_is_not_read() -> None:
    disk = SlowDisk()
    assert Arrivals(disk).hold(request(), held=192 - PARK_TOKENS_MIN + 1, token_s=0.01, now_ns=0) is None
    assert disk.readings == []


def test_one_reading_serves_all_who_want_it() -> None:
    disk = SlowDisk()
    arrivals = Arrivals(disk)
    both = [request(), request()]
    for each in both:
        arrivals.hold(each, held=0, token_s=0.01, now_ns=0)
    disk.readings[0].set_result(None)  # the file was damaged
    assert (len(disk.readings), arrivals.ready(0), arrivals.read()) == (1, both, [])


def test_who_leaves_is_forgotten() -> None:
    arrivals, one = Arrivals(SlowDisk()), request()
    arrivals.hold(one, held=0, token_s=0.01, now_ns=0)
    arrivals.remove(one)
    assert (arrivals.requests, arrivals.wait_s(0)) == ([], None)
