"""One suite, two servers: fakeredis and a real one. Each test leaves a state that holds."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import fakeredis
import pytest

import lmpoold.store
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.scripts import PoolStore
from tests.store.pool import Pool, begin

README = Path(lmpoold.store.__path__[0]) / "README.md"


def _documented_keys() -> list[tuple[re.Pattern[str], bool]]:
    """The key table of the README: (pattern, whether the key may stay for ever)."""
    rows = re.findall(r"^\| `([^`]+)` \| [A-Z]+.*\| ([^|]+) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) > 15, "the key table was not found"
    places = {"<k>": r"\d+", "<epoch>": r"\d+", "<version>": r"\d+"}
    return [
        (
            re.compile(re.sub(r"<\w+>", lambda place: places.get(place[0], ".+"), name)),
            lives.startswith("owned"),
        )
        for name, lives in rows
    ]


KEYS = _documented_keys()
KEYS_OF_REQUESTS = re.compile("req:.+")
LIVE = {"queued", "parked", "routed", "running"}
ENDED = {"done", "cancelled", "failed", "tombstone"}


async def check_leftovers(store: PoolStore) -> None:
    """Every key is documented, and has a TTL unless it is owned."""
    for raw in await store.redis.keys("*"):
        key = raw.decode()
        assert key.startswith(store.keys.prefix)
        rows = [owned for name, owned in KEYS if name.fullmatch(key[len(store.keys.prefix) :])]
        assert len(rows) == 1, f"{key} is in {len(rows)} rows of the key table"
        ends = await store.redis.pttl(raw) > 0
        assert rows[0] or ends, f"{key} has no TTL"
        if KEYS_OF_REQUESTS.fullmatch(key[len(store.keys.prefix) :]):
            state = (await store.redis.hget(raw, "state") or b"").decode()
            assert state in LIVE or state in ENDED, f"{key} is in state {state!r}"
            assert state in LIVE or ends, f"{key} has ended and has no TTL"


async def check_reservations(store: PoolStore) -> None:
    """Each rank's row sums up its reservations, and no count is negative."""
    for row in await store.ranks():
        held = await store.redis.hvals(store.keys.reservations(row.rank))
        sums = Counter[str]()
        for value in held:
            blocks, tokens, *_ = value.decode().split(":")
            sums.update(blocks=int(blocks), tokens=int(tokens))
        assert (row.reserved, row.reserved_tokens) == (sums["blocks"], sums["tokens"]), row
        assert min(row.free, row.reclaimable, row.sequences, row.wait_tokens, row.run_tokens) >= 0


async def check_parked(store: PoolStore) -> None:
    """Whoever is parked has its fields, and nobody else has."""
    waiting = {raw.decode() for raw in await store.redis.zrange(store.keys.parked, 0, -1)}
    fields = {raw.decode() for raw in await store.redis.hkeys(store.keys.parked_requests)}
    assert fields == {f"{request_id}:{part}" for request_id in waiting for part in "pta"}


async def check_due(store: PoolStore) -> None:
    """Whoever waits for a rank or is at one has an end, and nobody else."""
    timed = {raw.decode() for raw in await store.redis.zrange(store.keys.due, 0, -1)}
    prefix = store.keys.request("")
    open_ = set()
    for raw in await store.redis.keys(f"{prefix}*"):
        if (await store.redis.hget(raw, "state")) in (b"parked", b"routed", b"running"):
            open_.add(raw.decode().removeprefix(prefix))
    assert timed == open_


@pytest.fixture(params=["fake", "real"])
async def store(request: pytest.FixtureRequest, server_url: str) -> AsyncIterator[PoolStore]:
    """An empty server of each kind. The real one is started by the session, or the test fails."""
    lane = None
    if request.param == "real":
        redis = open_redis(server_url)
        await redis.flushall()
        await redis.function_flush("SYNC")
        lane = Lane(redis)
    else:
        redis = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7, 0)), protocol=2)
    store = PoolStore(redis, Keyspace(), lane)
    yield store
    await check_leftovers(store)
    await check_reservations(store)
    await check_parked(store)
    await check_due(store)
    if lane is not None:
        await lane.close()
    await redis.aclose()


@pytest.fixture
async def pool(store: PoolStore) -> Pool:
    """A described pool without workers."""
    return await begin(store)
