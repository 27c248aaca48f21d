"""configure: what the pool serves, told once and compared ever after."""

from dataclasses import fields, replace

import pytest

from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.errors import PoolMismatch, PoolUnknown, ProtocolError
from lmpoold.store.scripts import PoolStore
from tests.store.pool import IDENTITY, everything

PROMPT = list(range(24))
OTHER = {
    "protocol": "2",
    "model": "other",
    "fingerprint": "f1",
    "dtype": "bfloat16",
    "block_size": 8,
    "kv_block_bytes": 2048,
    "domain": "d1",
    "max_model_len": 32,
}


async def test_a_described_pool_holds_identity_and_constants(store):
    await store.configure(IDENTITY, PoolConstants(max_parked=7))
    cfg = await store.cfg()
    assert cfg == {**IDENTITY.to_fields(), **PoolConstants(max_parked=7).to_fields()}


async def test_a_described_pool_has_an_ingress_that_a_group_reads(store):
    await store.configure(IDENTITY, PoolConstants())
    (group,) = await store.redis.xinfo_groups(store.keys.ingress)
    assert group["name"] == b"sched"


async def test_what_was_sent_before_the_first_lmpoold_is_still_delivered(store):
    entry = await store.redis.xadd(store.keys.ingress, {"prompt": "early"})
    await store.configure(IDENTITY, PoolConstants())
    reply = await store.redis.xreadgroup("sched", "d0", {store.keys.ingress: ">"})
    assert [sent for sent, _ in reply[0][1]] == [entry]


async def test_a_changed_setting_survives_the_next_lmpoold(pool):
    await pool.set(w_wait=5, max_parked=9)
    await pool.store.configure(IDENTITY, PoolConstants())
    cfg = await pool.store.cfg()
    assert (cfg["w_wait"], cfg["max_parked"]) == ("5", "9")


async def test_a_changed_setting_counts_at_once_when_an_lmpoold_starts(pool):
    await pool.ask("a", [1])
    await pool.store.redis.hset(pool.store.keys.cfg, "max_parked", "1")
    await pool.store.configure(IDENTITY, PoolConstants())
    assert (await pool.ask("b", [1])).detail == "overloaded"


async def test_every_constant_can_be_tuned_and_nothing_else(pool):
    changed = PoolConstants(w_wait=5, foreground=0, hot_threshold=3, lease_ttl_ms=77, pairs="0-1")
    await pool.store.tune(changed.to_fields())
    assert await pool.store.cfg() == {**IDENTITY.to_fields(), **changed.to_fields()}
    for name in (*IDENTITY.to_fields(), "weights", "no_such_thing"):
        with pytest.raises(ProtocolError, match=f"{name} is no constant"):
            await pool.store.tune({name: "1"})


async def test_describing_a_pool_again_changes_nothing(pool):
    await pool.join(0)
    before = await everything(pool.store)
    await pool.store.configure(IDENTITY, PoolConstants())
    assert await everything(pool.store) == before


@pytest.mark.parametrize("field", [field.name for field in fields(PoolIdentity)])
async def test_another_identity_is_refused_by_name_while_a_worker_lives(pool, field):
    await pool.join(0)
    before = await everything(pool.store)
    with pytest.raises(PoolMismatch, match=rf"^{field}: the pool has {getattr(IDENTITY, field)},"):
        await pool.store.configure(replace(IDENTITY, **{field: OTHER[field]}), PoolConstants())
    assert await everything(pool.store) == before


async def test_another_identity_is_welcome_once_no_worker_lives(pool):
    epoch = await pool.join(0)
    await pool.store.rank_down(0, epoch)
    await pool.store.configure(replace(IDENTITY, model="other"), PoolConstants())
    cfg = await pool.store.cfg()
    assert cfg["model"] == "other"
    assert "weights" not in cfg


async def test_a_silent_worker_does_not_hold_the_identity(pool):
    await pool.join(0)
    await pool.lose(0)
    await pool.store.configure(replace(IDENTITY, model="other"), PoolConstants())
    assert (await pool.store.cfg())["model"] == "other"


async def test_a_lost_library_is_loaded_again_by_the_next_call(pool):
    await pool.store.redis.function_flush("SYNC")
    assert await pool.store.ranks() == []


async def test_an_older_library_that_lacks_the_function_is_replaced(pool):
    body = "redis.register_function('route', function() return 1 end)"
    await pool.store.redis.function_load(f"#!lua name=lmpool\n{body}", replace=True)
    assert await pool.store.ranks() == []


async def test_a_library_that_another_has_loaded_is_left_alone(pool):
    """It would lose what it remembers, and the server's time, once for each who missed it."""
    await pool.join(0)
    await pool.report(0, free=99)
    await pool.ask("a", PROMPT)
    await pool.store.load_library(replace=False)
    await pool.ask("b", PROMPT)
    assert (
        await pool.store.redis.hget(pool.store.keys.request("b"), "reason") == b"prefix_in_flight"
    )


@pytest.mark.parametrize("constant", ["w_prefill", "max_parked", "out_ttl_ms"])
async def test_a_cfg_without_a_constant_names_it(pool, constant):
    await pool.store.redis.hdel(pool.store.keys.cfg, constant)
    await pool.store.load_library()  # it forgets what it has read of cfg
    stranger = PoolStore(pool.store.redis, pool.store.keys)
    with pytest.raises(PoolUnknown, match=rf"cfg lacks {constant}"):
        await stranger.reap(1)


@pytest.mark.parametrize("lost", ["a constant", "all of it"])
async def test_who_has_described_the_pool_does_so_again_when_that_is_lost(pool, lost):
    redis, keys = pool.store.redis, pool.store.keys
    before = await pool.store.cfg()
    await (redis.hdel(keys.cfg, "max_parked") if lost == "a constant" else redis.flushall())
    await redis.function_flush("SYNC")
    assert await pool.store.reap(1) == []
    assert await pool.store.cfg() == before
