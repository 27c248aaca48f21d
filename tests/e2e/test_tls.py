"""TLS: a pool whose programs reach the server by rediss:// alone, and what goes wrong there.

The embedded server is built without TLS, so a proxy of this process ends it in front of it: what is
tested is our side, which is the same before a server that ends it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
from redis.exceptions import ConnectionError as ServerLost

from benchmarks.idle_worker import MODEL
from benchmarks.processes import Processes, running_processes
from lmpoold.client import PoolClient
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Secured:
    """A server behind TLS.

    Attributes:
        folder: of certificates: `ca.pem`, `other.pem` of a stranger, `mine.pem` of a client.
    """

    processes: Processes
    folder: Path
    context: ssl.SSLContext
    port: int

    def url(self, query="ssl_ca_certs={folder}/ca.pem", host="127.0.0.1"):
        return f"rediss://{host}:{self.port}/0?{query.format(folder=self.folder)}"


async def pass_on(reader, writer):
    with contextlib.suppress(OSError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def ending_tls(socket: Path, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Listen for TLS, pass everything on to a unix socket; yields the port."""

    async def serve(reader, writer):
        behind, before = await asyncio.open_unix_connection(str(socket))
        await asyncio.gather(pass_on(reader, before), pass_on(behind, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    other.cert_pem.write_to_path(str(folder / "other.pem"))
    ca.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(folder / "mine.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(context)
    async with running_processes() as processes:
        socket = Path(processes.url.removeprefix("unix://"))
        async with ending_tls(socket, context) as port:
            yield Secured(processes, folder, context, port)
            await asyncio.to_thread(processes.end)  # they say goodbye over the proxy


async def ran(*argv: str) -> tuple[int, str]:
    """Run one of our programs to its end; returns its exit code and what it said on stderr."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *argv),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, said = await child.communicate()
    assert child.returncode is not None
    return child.returncode, said.decode()


async def test_a_pool_lives_and_answers_over_tls(secured):
    processes = secured.processes
    processes.url = url = secured.url()
    processes.start("lmpoold", "lmpoold", "--model", MODEL)
    processes.start("worker", "benchmarks.idle_worker")
    redis = open_redis(url)
    store = PoolStore(redis, Keyspace())
    async with asyncio.timeout(60):
        while not [row for row in await store.ranks() if row.state == "up"]:
            processes.check()
            await asyncio.sleep(0.1)
    await redis.aclose()
    async with PoolClient(url) as pool:
        short = await pool.generate(prompt="Once", max_tokens=3)
        long = await pool.generate(prompt="long " * 200, max_tokens=30)
    assert short.text == "AAA"
    assert long.text == "A" * 30
    code, said = await ran("ctl", "pulse", "worker", "--redis-url", url)
    assert code == 0, said


@pytest.mark.parametrize(
    "argv",
    [("lmpoold", "--model", MODEL), ("workers", "--model", MODEL), ("lmpoold.gateway", "--port=0")],
    ids=lambda argv: argv[0],
)
async def test_a_program_that_trusts_another_ca_ends_at_once_and_says_what_to_do(secured, argv):
    url = secured.url("ssl_ca_certs={folder}/other.pem")
    code, said = await ran(*argv, "--redis-url", url)
    last = said.splitlines()[-1]
    assert code == 2
    assert "does not accept the server's certificate" in last
    assert "?ssl_ca_certs=" in last


async def test_the_operators_tool_says_it_too(secured):
    code, said = await ran("ctl", "status", "--redis-url", secured.url("ssl_cert_reqs=required"))
    assert code != 0
    assert "?ssl_ca_certs=" in said


@pytest.mark.parametrize(
    ("query", "host"),
    [
        ("ssl_ca_certs={folder}/other.pem", "127.0.0.1"),
        ("ssl_ca_certs={folder}/ca.pem", "localhost"),
    ],
    ids=["another CA", "another name"],
)
async def test_a_client_is_told_at_its_first_request(secured, query, host):
    async with PoolClient(secured.url(query, host)) as pool:
        with pytest.raises(ConfigError, match="a name that its certificate holds"):
            await pool.submit(prompt="Once")


async def test_a_server_that_wants_a_certificate_of_ours_gets_it(secured):
    mine = "&ssl_certfile={folder}/mine.pem&ssl_keyfile={folder}/mine.pem"
    known = open_redis(secured.url("ssl_ca_certs={folder}/ca.pem" + mine))
    unknown = open_redis(secured.url())
    secured.context.verify_mode = ssl.CERT_REQUIRED
    try:
        assert await known.ping()
        with pytest.raises(ServerLost):
            await unknown.ping()
    finally:
        secured.context.verify_mode = ssl.CERT_NONE
        await known.aclose()
        await unknown.aclose()


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("ssl_ca_certs={folder}/nothing.pem", "nothing.pem, cannot be used: .*No such file"),
        ("ssl_ca_certs={folder}", "ssl_ca_certs of the Redis URL"),
        ("ssl_certfile={folder}/ca.pem", "ssl_certfile with ssl_keyfile of the Redis URL"),
        ("ssl_ca_cert={folder}/ca.pem", "cannot read the Redis URL: .*'ssl_ca_cert'"),
    ],
)
async def test_a_url_whose_files_or_options_are_wrong_is_refused_before_anything_is_sent(
    secured, query, wrong
):
    with pytest.raises(ConfigError, match=wrong):
        open_redis(secured.url(query))
