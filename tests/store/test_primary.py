"""Sentinel and Cluster URLs, on real sentinels and a real cluster."""

import asyncio
import contextlib

import pytest
import trustme
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import ResponseError

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import is_lost
from lmpoold.store.connect import check_server, open_redis
from lmpoold.store.scripts import PoolStore
from tests.store.pool import Pool, begin
from tests.store.servers import TcpServer

pytestmark = pytest.mark.timeout(120)
PROMPT = list(range(16))


@pytest.fixture
async def watched(tmp_path):
    """A primary, its replica, and one sentinel that is quick to judge: (primary, replica, URL)."""
    primary = TcpServer(tmp_path / "a", "appendonly yes")
    await primary.start()
    replica = TcpServer(tmp_path / "b", f"replicaof 127.0.0.1 {primary.port}", "appendonly yes")
    await replica.start()
    sentinel = TcpServer(
        tmp_path / "s",
        f"sentinel monitor mine 127.0.0.1 {primary.port} 1",
        "sentinel down-after-milliseconds mine 500",
        "sentinel failover-timeout mine 3000",
    )
    await sentinel.start()
    async with asyncio.timeout(30):
        while not await sentinel.command("SENTINEL", "REPLICAS", "mine"):
            await asyncio.sleep(0.1)
        while b"master_link_status:up" not in await raw_info(replica):
            await asyncio.sleep(0.1)
    yield primary, replica, f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mine"
    for server in (sentinel, replica, primary):
        server.kill()


async def raw_info(server):
    info = await server.command("INFO", "replication")
    if isinstance(info, dict):
        return b"\n".join(f"{name}:{value}".encode() for name, value in info.items())
    return info


@contextlib.asynccontextmanager
async def opened(url, pool="default", **options):
    redis = open_redis(url, pool=pool, **options)
    try:
        yield PoolStore(redis, Keyspace(pool))
    finally:
        await redis.aclose()


async def fail_over(sentinel) -> None:
    """Hand the service to its replica; the old primary stays up, as a replica."""
    try:
        await sentinel.execute_command("SENTINEL", "FAILOVER", "mine")
    except ResponseError as error:
        if "NOGOODSLAVE" not in str(error):
            raise
        raise ServerLost("not yet") from None


async def until(work, within_s=20.0):
    """Do `work` again until the server is there, as every loop of the daemons does."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await work()
            except Exception as error:
                if not is_lost(error):
                    raise
                await asyncio.sleep(0.05)


async def test_a_pool_goes_on_after_a_sentinel_has_made_the_replica_the_primary(watched):
    primary, replica, url = watched
    async with opened(url) as store:
        assert (await check_server(store.redis)).startswith("Valkey")
        pool = await begin(store)
        await pool.join(0)
        assert (await pool.ask("a", PROMPT)).outcome == "routed"
        await primary.command("WAIT", 1, 5000)
        primary.kill()
        with pytest.raises((ServerLost, OSError)):
            await pool.row(0)
        row = await until(lambda: pool.row(0))
        assert (row.state, row.reserved) == ("up", 5)
        assert (await until(lambda: pool.ask("b", PROMPT))).outcome == "routed"
        info = await store.redis.info("server")
        assert info["tcp_port"] == replica.port


async def test_a_primary_that_was_demoted_is_left_for_the_new_one(watched):
    """It still answers, so no connection breaks: its READONLY must send callers on."""
    primary, replica, url = watched
    async with opened(url) as store:
        pool = await begin(store)
        await pool.join(0)
        await primary.command("WAIT", 1, 5000)
        watcher = int(url.rpartition(":")[2].partition("/")[0])
        async with opened(f"redis://127.0.0.1:{watcher}") as sentinel:
            await until(lambda: fail_over(sentinel.redis))
        async with asyncio.timeout(30):
            while b"role:slave" not in await raw_info(primary):
                await asyncio.sleep(0.05)
        errors = []

        async def beat():
            try:
                await store.heartbeat(0, pool.epochs[0], 60_000)
            except Exception as error:
                errors.append(error)
                raise

        await until(beat)
        assert all(is_lost(error) for error in errors)
        await until(lambda: store.redis.set("lmpool:{default}:probe", "1", px=1000))
        assert (await store.redis.info("server"))["tcp_port"] == replica.port


@pytest.fixture
async def cluster(tmp_path):
    """Two nodes that share the slots: (node of the low half, node of the high half, URL)."""
    nodes = [
        TcpServer(tmp_path / name, "cluster-enabled yes", "appendonly yes") for name in ("a", "b")
    ]
    for node in nodes:
        await node.start()
    await nodes[0].command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    await nodes[1].command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
    await nodes[0].command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    async with asyncio.timeout(30):
        for node in nodes:
            while not await whole(node):
                await asyncio.sleep(0.1)
    yield *nodes, "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    for node in nodes:
        node.kill()


async def whole(node) -> bool:
    state = await node.command("CLUSTER", "INFO")
    return state["cluster_state"] == "ok" if isinstance(state, dict) else b"state:ok" in state


POOLS = ("default", "other", "p1", "p2", "p3", "p4")


async def test_each_pool_of_a_cluster_lives_on_the_node_that_has_its_slot(cluster):
    low, high, url = cluster
    ports = set()
    for name in POOLS:
        async with opened(url, name) as store:
            pool = await begin(store)
            await pool.join(0)
            assert (await pool.ask("a", PROMPT)).outcome == "routed"
            (dispatch,) = await pool.deliver(0)
            await pool.finish(0, dispatch, 1, 2)
            assert [answer.token for answer in await pool.answers("a")] == [1, 2, None]
            ports.add((await store.redis.info("server"))["tcp_port"])
    assert ports == {low.port, high.port}
    # The functions are wherever a pool is.
    assert all([await node.command("FUNCTION", "LIST") for node in (low, high)])


async def test_a_blocking_reader_of_a_cluster_waits_on_the_right_node(cluster):
    *_, url = cluster
    for name in POOLS[:3]:
        async with opened(url, name, blocking=True) as reader, opened(url, name) as store:
            pool = await begin(store)
            reading = asyncio.create_task(reader.redis.blpop([store.keys.wake], timeout=5))
            await pool.ask("a", PROMPT)
            await pool.join(0)
            await pool.report(0)
            assert await asyncio.wait_for(reading, 5) is not None


async def test_a_slot_that_moves_takes_its_pool_along(cluster):
    """The pool's node hands its (empty) slot over; whoever is connected follows the MOVED reply."""
    low, high, url = cluster
    async with opened(url) as store:
        await until(lambda: begin(store))
        slot = await low.command("CLUSTER", "KEYSLOT", store.keys.load)
        before = (await store.redis.info("server"))["tcp_port"]
        old, new = (low, high) if before == low.port else (high, low)
        await store.redis.unlink(store.keys.cfg, store.keys.ingress)
        name = (await new.command("CLUSTER", "MYID")).decode()
        for node in (new, old):
            await node.command("CLUSTER", "SETSLOT", slot, "NODE", name)
        pool = await until(lambda: begin(store))
        assert isinstance(pool, Pool)
        await until(lambda: pool.join(0))
        assert (await store.redis.info("server"))["tcp_port"] == new.port


async def test_nobody_who_knows_the_primary_is_a_lost_server_not_a_wrong_setting(tmp_path):
    async with opened("redis+sentinel://127.0.0.1:1/mine") as store:
        with pytest.raises(ServerLost, match=r"nobody knows the primary 'mine'.*127\.0\.0\.1:1"):
            await store.redis.ping()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://h:1",
        "redis+sentinel:///mine",
        "redis+sentinel://h:x/mine",
        "redis+sentinel://h:99999/mine",
        "redis+cluster://h:1/mine",
        "redis+other://h:1/mine",
    ],
)
def test_a_url_of_many_hosts_that_cannot_be_read_is_a_config_error(url):
    with pytest.raises(ConfigError, match="cannot read the Redis URL"):
        open_redis(url)


def test_credentials_tls_and_sentinel_passwords_go_where_they_belong(tmp_path):
    trustme.CA().cert_pem.write_to_path(ca := f"{tmp_path}/ca.pem")
    url = (
        f"rediss+sentinel://joe:secret@h1,[::1]:7/mine/3?sentinel_password=watch&ssl_ca_certs={ca}"
    )
    options = open_redis(url).connection_pool.connection_kwargs
    where = options["whereabouts"]
    assert where.asked == (("h1", 26379), ("::1", 7))
    assert (options["username"], options["password"], options["db"]) == ("joe", "secret", 3)
    assert options["ssl_ca_certs"] == where.options["ssl_ca_certs"] == ca
    assert (where.options["password"], where.options["ssl"]) == ("watch", True)
    plain = open_redis("redis+cluster://joe:secret@h1").connection_pool.connection_kwargs
    assert plain["whereabouts"].options["password"] == "secret"
