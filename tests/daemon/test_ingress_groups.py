"""Much text at once: read in groups, and nothing short waits for something long."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from lmpoold.daemon.ingress import GROUP_BYTES, GROUPS_AT_ONCE, Ingress, grouped, size_bytes
from lmpoold.daemon.metrics import RouterMetrics
from lmpoold.daemon.reading import Refused


def entry(number, size):
    return f"{number}-0", {b"prompt": b"x" * size}


@given(st.lists(st.integers(1, 40_000), max_size=80))
def test_every_entry_is_in_one_group_and_no_group_of_several_is_too_large(sizes):
    entries = [entry(number, size) for number, size in enumerate(sizes)]
    groups = grouped(entries, GROUP_BYTES)
    assert sorted(e[0] for group in groups for e in group) == sorted(e[0] for e in entries)
    for group in groups:
        assert group
        assert len(group) == 1 or sum(map(size_bytes, group)) <= GROUP_BYTES


def test_short_entries_come_first_and_deleted_ones_not_at_all():
    entries = [entry(1, 30_000), ("2-0", {}), entry(3, 10), entry(4, 30_000), entry(5, 10)]
    names = [[e[0] for e in group] for group in grouped(entries, GROUP_BYTES)]
    assert names == [["3-0", "5-0"], ["1-0"], ["4-0"]]


class Gate:
    """A reader that can be held at long entries; it refuses everything, which needs no model."""

    def __init__(self):
        self.open = threading.Event()
        self.within = 0
        self.most = 0
        self._lock = threading.Lock()

    def read(self, entries):
        if any(size_bytes(e) > GROUP_BYTES for e in entries):
            with self._lock:
                self.within += 1
                self.most = max(self.most, self.within)
            assert self.open.wait(30)
            with self._lock:
                self.within -= 1
        return [Refused(e[0], e[0], "c", "invalid", "no", "") for e in entries]


class Store:
    """Notes who was answered."""

    def __init__(self):
        self.answered = []
        self.news = asyncio.Event()

    async def finish(self, request_id, *_):
        self.answered.append(request_id)
        self.news.set()


class Fed:
    """An inbox that holds what a test puts in."""

    def __init__(self):
        self.batches = asyncio.Queue()

    async def claim(self, *_):
        return []

    async def read(self, *_):
        return await self.batches.get()


@pytest.fixture
async def running():
    store, inbox, reader, stop = Store(), Fed(), Gate(), asyncio.Event()
    ingress = Ingress(store, inbox, reader, RouterMetrics(CollectorRegistry(), 16))
    task = asyncio.create_task(ingress.run(stop))
    yield store, inbox, reader
    reader.open.set()
    stop.set()
    inbox.batches.put_nowait([])
    inbox.batches.put_nowait([])
    await task


async def until(store, count):
    async with asyncio.timeout(30):
        while len(store.answered) < count:
            store.news.clear()
            await store.news.wait()


async def test_long_entries_are_read_several_at_once_and_short_ones_pass_them(running):
    store, inbox, reader = running
    long = [entry(number, 2 * GROUP_BYTES) for number in range(3 * GROUPS_AT_ONCE)]
    await inbox.batches.put(long)
    await inbox.batches.put([entry(900, 10)])
    await until(store, 1)
    assert store.answered == ["900-0"]
    reader.open.set()
    await until(store, len(long) + 1)
    assert sorted(store.answered) == sorted(e[0] for e in (*long, entry(900, 10)))
    assert 1 < reader.most <= GROUPS_AT_ONCE
