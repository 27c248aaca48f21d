"""A pool whose every program has a user of its own: each can do its work, and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
import pytest_asyncio
from redis.exceptions import AuthenticationError, NoPermissionError

from lmpoold.client import PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.roles import ADMIN, ROLES, user_name
from lmpoold.protocol.transfer import Mode, Phase
from lmpoold.store.connect import open_redis
from lmpoold.store.library import FUNCTIONS
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state
from tests.e2e.forge import forge
from tests.e2e.transfer_pool import MODEL, Pair, prompt
from tests.store.servers import TcpServer

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]
KEYS = Keyspace()
OTHER = "lmpool:{other}:cfg"
PROGRAMS = {"lmpoold": "scheduler", "workers": "worker"}


class GuardedServer(TcpServer):
    """A server that starts with an ACL file of ours."""

    def __init__(self, folder):
        folder.mkdir(parents=True)
        words, users = folder / "passwords.json", folder / "users.acl"
        argv = [sys.executable, "-m", "ctl", "acl", "--passwords", str(words)]
        users.write_text(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        assert (words.stat().st_mode & 0o777) == 0o600
        self.words = json.loads(words.read_text())
        assert not [word for word in self.words.values() if word in users.read_text()]
        super().__init__(folder, f"aclfile {users}")

    def url_of(self, role):
        user = role if role == ADMIN else user_name("default", role)
        return f"redis://{user}:{self.words[role]}@127.0.0.1:{self.port}/0"

    @property
    def url(self):
        return self.url_of(ADMIN)

    async def command(self, *words):
        link = open_redis(self.url)
        try:
            return await link.execute_command(*words)
        finally:
            await link.aclose()

    def stop(self):
        self.kill()


class GuardedPair(Pair):
    """A pool whose programs have their own users; `client` is a producer."""

    def __init__(self, folder):
        super().__init__(folder)
        self.server = GuardedServer(folder / "guarded")

    async def start(self):
        await self.server.start()
        self.redis = open_redis(self.server.url)
        self.store = PoolStore(self.redis, KEYS)
        self.plans = PlanStore(self.store)
        self.client = await PoolClient(self.server.url_of("producer")).__aenter__()
        self.start_daemon()
        for rank in (0, 1):
            self.start_worker(rank)
        await self.until_up()

    def _spawn(self, name, program, *argv, fault=""):
        url = self.server.url_of(PROGRAMS[program])
        argv = (*argv, "--redis-url", url, "--model", MODEL)
        log = self.folder / f"{name}.log"
        self.children[name] = forge().start(program, *argv, log=log, fault=fault)

    async def denied(self):
        """What the server has refused, by user."""
        rows = await self.redis.execute_command("ACL", "LOG")
        words = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return {(row[b"username"], row[b"reason"], row[b"object"]) for row in words}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory):
    guarded = GuardedPair(tmp_path_factory.mktemp("roles"))
    try:
        await guarded.start()
        yield guarded
    finally:
        await guarded.stop()


async def test_every_role_does_its_work_and_the_server_refuses_nothing(pair):
    await pair.redis.execute_command("ACL", "LOG", "RESET")
    asked = prompt(1)
    # asked, answered; copied, moved and fetched between workers; cancelled at each stage
    first = await pair.ask(0, asked)
    assert await pair.settled(await pair.begin(asked, 0, 1)) is Phase.FINALIZE
    assert (await pair.ask(1, asked)).tokens == first.tokens
    await pair.ask(0, prompt(2))
    moved = await pair.begin(prompt(2), 0, 1, Mode.MOVE)
    assert await pair.settled(moved) is Phase.FINALIZE
    running = await pair.client.submit(tokens=asked, max_tokens=500, ignore_eos=True)
    async for _ in pair.client.stream(running):
        break  # leaving cancels
    for rank in (0, 1):
        await pair.store.drain(rank, draining=True)
    parked = await pair.client.submit(tokens=asked, max_tokens=5)
    await until_state(pair, parked, "parked")
    await pair.client.cancel(parked)
    await until_state(pair, parked, "cancelled")
    for rank in (0, 1):
        await pair.store.drain(rank, draining=False)
    await pair.redis.xadd(KEYS.ingress, {"id": "bad", "prompt": "x", "max_tokens": "none"})
    async with asyncio.timeout(10):
        while not await pair.redis.xlen(KEYS.dead):
            await asyncio.sleep(0.02)
    # a worker that dies: its requests move on, its rank is joined again
    moving = await pair.client.submit(tokens=asked, max_tokens=300, ignore_eos=True)
    await until_state(pair, moving, "running")
    rank = int(await pair.redis.hget(KEYS.request(moving), "rank"))
    await pair.restart_worker(rank)
    count = 0
    async for _ in pair.client.stream(moving):
        count += 1
    assert count == 300
    await pair.until_idle()
    assert await pair.denied() == set()
    assert pair.dead() == []


async def test_a_viewer_sees_the_pool_and_a_gateway_asks_and_sees(pair):
    await pair.redis.execute_command("ACL", "LOG", "RESET")
    for role in ("viewer", "gateway"):
        redis = open_redis(pair.server.url_of(role))
        store, plans = PoolStore(redis, KEYS), PlanStore(PoolStore(redis, KEYS))
        async with asyncio.timeout(30):  # workers may be up before their lmpoold reads and leads
            while not (state := await read_state(store)).leader or not state.daemons:
                await asyncio.sleep(0.05)
        assert state.up == 2
        assert state.daemons == 1
        await plans.log()  # what it holds depends on who ran before; here it must be allowed
        await plans.refusals()
        assert await redis.xinfo_groups(KEYS.ingress)
        await redis.info("everything")
        await redis.aclose()
    for words in (["status"], ["ranks"], ["pages", "0"], ["plans"], ["top", "--once"]):
        argv = [sys.executable, "-m", "ctl", *words, "--redis-url", pair.server.url_of("viewer")]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    async with PoolClient(pair.server.url_of("gateway")) as client:
        assert len((await client.generate(tokens=prompt(5), max_tokens=3)).tokens) == 3
    assert await pair.denied() == set()


async def until_state(pair, name, state):
    async with asyncio.timeout(20):
        while await pair.redis.hget(KEYS.request(name), "state") != state.encode():
            await asyncio.sleep(0.02)


FORBIDDEN = {
    "everybody": [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("ACL", "LIST"),
        ("SHUTDOWN",),
        ("EVAL", "return 1", "0"),
        ("FUNCTION", "FLUSH"),
        ("MONITOR",),
        ("HSET", OTHER, "model", "x"),
        ("HGETALL", OTHER),
        ("SET", "a", "b"),
        ("REPLICAOF", "NO", "ONE"),
        ("CLIENT", "KILL", "TYPE", "normal"),
    ],
    "producer": [
        ("XRANGE", KEYS.ingress, "-", "+"),
        ("XREAD", "STREAMS", KEYS.ingress, "0"),
        ("XRANGE", KEYS.worker(0), "-", "+"),
        ("HSET", KEYS.load, "0", "x"),
        ("HSET", KEYS.cfg, "block_size", "1"),
        ("HGETALL", KEYS.pages(0)),
        ("HGETALL", KEYS.parked_requests),
        ("XRANGE", KEYS.dead, "-", "+"),
        ("FUNCTION", "LOAD", "REPLACE", "x"),
    ],
    "viewer": [
        ("XADD", KEYS.ingress, "*", "prompt", "x"),
        ("XRANGE", KEYS.ingress, "-", "+"),
        ("XRANGE", KEYS.worker(0), "-", "+"),
        ("XRANGE", KEYS.out("c"), "-", "+"),
        ("XRANGE", KEYS.dead, "-", "+"),
        ("GET", KEYS.emitted("a")),
        ("HGETALL", KEYS.parked_requests),
        ("HSET", KEYS.request("a"), "state", "x"),
        ("UNLINK", KEYS.load),
        ("FUNCTION", "LOAD", "REPLACE", "x"),
    ],
    "worker": [
        ("XADD", KEYS.ingress, "*", "prompt", "x"),
        ("XRANGE", KEYS.ingress, "-", "+"),
        ("SET", KEYS.fence, "9"),
        ("SET", KEYS.lead, "me"),
        ("HSET", KEYS.links, "0>1", "1 1"),
        ("XRANGE", KEYS.dead, "-", "+"),
        ("FUNCTION", "LOAD", "REPLACE", "x"),
    ],
    "scheduler": [("FUNCTION", "DELETE", "lmpool"), ("FUNCTION", "DUMP")],
    "gateway": [
        ("XRANGE", KEYS.ingress, "-", "+"),
        ("XRANGE", KEYS.worker(0), "-", "+"),
        ("HSET", KEYS.load, "0", "x"),
        ("FUNCTION", "LOAD", "REPLACE", "x"),
    ],
}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_is_refused_what_is_not_its_work(pair, role):
    redis = open_redis(pair.server.url_of(role))
    try:
        for words in (*FORBIDDEN["everybody"], *FORBIDDEN[role]):
            with pytest.raises(NoPermissionError):
                await redis.execute_command(*words)
    finally:
        await redis.aclose()
    assert pair.dead() == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_call_the_functions_of_its_table_alone(pair, role):
    may = {*ROLES[role].calls.split(), *ROLES[role].reads.split()}
    assert may <= FUNCTIONS.keys()
    for function, only_reads in FUNCTIONS.items():
        command = "FCALL_RO" if only_reads else "FCALL"
        user = user_name("default", role)
        words = ("ACL", "DRYRUN", user, command, function, 1, KEYS.load)
        reply = await pair.redis.execute_command(*words)
        assert (reply == b"OK") == (function in may), (function, reply)


async def test_nobody_comes_in_without_a_password(pair):
    for url in (
        f"redis://127.0.0.1:{pair.server.port}/0",
        f"redis://default-viewer:wrong@127.0.0.1:{pair.server.port}/0",
    ):
        redis = open_redis(url)
        with pytest.raises(AuthenticationError):
            await redis.ping()
        await redis.aclose()
