"""Which servers a pool may live on, and the one that is embedded."""

import stat

import pytest
from redis.exceptions import BusyLoadingError

from lmpoold.protocol.errors import ConfigError, NoCapacity, UnsafeServer
from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import is_lost
from lmpoold.store import embedded
from lmpoold.store.connect import check_server, judge_server, open_redis
from lmpoold.store.embedded import EmbeddedServer, server_binary
from lmpoold.store.scripts import PoolStore
from tests.store.pool import begin

SAFE = {"redis_version": "7.0.15", "maxmemory": 0, "maxmemory_policy": "noeviction", "loading": 0}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "Redis 7.0.15"),
        ({"redis_version": "8.2.1"}, "Redis 8.2.1"),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.0"}, "Valkey 7.2.0"),
        ({"maxmemory": 100}, "Redis 7.0.15"),
        ({"maxmemory_policy": "allkeys-lru"}, "Redis 7.0.15"),
    ],
)
def test_a_safe_server_is_named(changes, name):
    assert judge_server(SAFE | changes) == name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"redis_version": "6.2.14"}, r"Redis 6\.2\.14 lacks FUNCTION .+ run Redis 7\.0"),
        ({"valkey_version": "7.1.0"}, r"Valkey 7\.1\.0 lacks FUNCTION .+ run Valkey 7\.2"),
        ({"maxmemory": 9, "maxmemory_policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru"),
        ({"maxmemory": 9, "maxmemory_policy": "volatile-ttl"}, "maxmemory-policy is volatile-ttl"),
    ],
)
def test_an_unsafe_server_is_refused_by_what_to_change(changes, why):
    with pytest.raises(UnsafeServer, match=why):
        judge_server(SAFE | changes)


async def test_a_real_server_is_judged_by_its_own_settings(redis):
    assert (await check_server(redis)).startswith(("Valkey", "Redis"))
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    await redis.config_set("maxmemory", "1gb")
    try:
        with pytest.raises(UnsafeServer, match="CONFIG SET maxmemory-policy noeviction"):
            await check_server(redis)
    finally:
        await redis.config_set("maxmemory", "0")
        await redis.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("url", ["", "nonsense", "http://localhost", "redis://host:port/0"])
def test_a_url_that_cannot_be_read_is_a_config_error(url):
    with pytest.raises(ConfigError, match="cannot read the Redis URL"):
        open_redis(url)


async def test_a_server_without_memory_is_told_apart_and_keeps_what_it_had(redis):
    pool = await begin(PoolStore(redis, Keyspace()))
    await pool.join(0)
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(NoCapacity, match="out of memory"):
            await pool.store.submit("a", "c", {"prompt": "x"})
    finally:
        await redis.config_set("maxmemory", "0")
    assert await redis.xlen(pool.store.keys.ingress) == 0


async def test_a_state_survives_the_kill_of_the_embedded_server(tmp_path):
    server = EmbeddedServer(tmp_path / "s", fsync="always")
    await server.start()
    try:
        client = open_redis(server.url)
        pool = await begin(PoolStore(client, Keyspace()))
        await pool.join(0)
        row = await pool.row(0)
        await client.aclose()
        server.kill()
        await server.start()
        client = open_redis(server.url)
        assert await PoolStore(client, Keyspace()).ranks() == [row]
        await client.aclose()
    finally:
        server.stop()


async def test_the_embedded_server_is_for_its_user_only(tmp_path):
    server = EmbeddedServer(tmp_path / "s")
    await server.start()
    try:
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    finally:
        server.stop()


async def test_an_embedded_server_that_ends_is_reported_with_its_last_words(tmp_path):
    (tmp_path / "s").mkdir()
    server = EmbeddedServer(tmp_path / "s", fsync="sometimes")
    with pytest.raises(ConfigError, match="the embedded server ended"):
        await server.start()


def test_a_socket_path_too_long_for_the_kernel_is_refused_by_the_option(tmp_path):
    with pytest.raises(ConfigError, match="--state-dir"):
        EmbeddedServer(tmp_path / ("x" * 120))


async def test_a_server_that_is_reading_its_data_in_is_waited_for_not_refused():
    class Loading:
        async def info(self, section):
            return SAFE | {"loading": 1}

    with pytest.raises(BusyLoadingError) as error:
        await check_server(Loading())
    assert is_lost(error.value)


async def test_the_embedded_server_keeps_what_its_owner_says_of_malloc(tmp_path, monkeypatch):
    program, note = tmp_path / "noting", tmp_path / "note"
    program.write_text(
        f'#!/bin/sh\nprintf %s "$GLIBC_TUNABLES" > {note}\nexec {server_binary()} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(embedded, "server_binary", lambda: program)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=9")
    server = EmbeddedServer(tmp_path / "s")
    await server.start()
    server.stop()
    # The later of two that name one thing holds.
    assert note.read_text() == f"{embedded.CACHED_FREES}:glibc.malloc.tcache_count=9"
