"""tune: the constants of the pool, changed while it runs."""

from lmpoold.protocol.config import PoolConstants, read_constants


async def test_every_constant_can_be_set_in_a_running_pool(pool):
    wanted = read_constants(dict.fromkeys(PoolConstants().to_fields(), "2") | {"pairs": "0-1"})
    await pool.store.tune(wanted)
    cfg = await pool.store.cfg()
    assert {name: cfg[name] for name in wanted} == wanted
