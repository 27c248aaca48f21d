"""Which pool a command means: the options that every command shares, and how they are resolved."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError

from lmpoold.protocol.errors import ConfigError, LMPoolError
from lmpoold.protocol.keys import DEFAULT_POOL, Keyspace
from lmpoold.store.connect import describe, open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore
from lmpoold.store.secure import tls_cure

DEFAULT_STATE_DIR = "~/.local/state/lmpool"
SERVER_FOLDER = "server"


class Unreachable(LMPoolError):
    """No server answers; lmpoolctl exits 3."""


@dataclass(frozen=True, slots=True)
class Target:
    """The pool that a command line names.

    Attributes:
        redis_url: as given; None means the embedded server of `state_dir`.
        pool: the pool's name.
        state_dir: where `up` keeps its server's data and the logs.
    """

    redis_url: str | None
    pool: str
    state_dir: Path

    @property
    def keys(self) -> Keyspace:
        """The pool's keys; ConfigError for a name that cannot be one."""
        return Keyspace(self.pool)

    def embedded(self) -> EmbeddedServer:
        """Return the server that `up` would run here; nothing is started."""
        return EmbeddedServer(self.state_dir / SERVER_FOLDER)

    def url(self) -> str:
        """Return the URL to connect to.

        Raises: Unreachable: none was given and no embedded server runs.
        """
        if self.redis_url:
            return self.redis_url
        server = self.embedded()
        if not listens(server.socket):
            raise Unreachable(
                f"no pool runs in {self.state_dir}: run `lmpoolctl up` or give --redis-url"
            )
        return server.url

    def flags(self) -> str:
        """Return the options that name this pool on another command line, with a blank before."""
        words = []
        if self.redis_url:
            words.append(f" --redis-url {shown_url(self.redis_url)}")
        elif self.state_dir != Path(DEFAULT_STATE_DIR).expanduser():
            words.append(f" --state-dir {self.state_dir}")
        if self.pool != DEFAULT_POOL:
            words.append(f" --pool {self.pool}")
        return "".join(words)


def listens(path: Path) -> bool:
    """Return whether a process accepts connections on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True


def shown_url(url: str) -> str:
    """Return a URL that may be printed: a password in it is starred out."""
    scheme, mark, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    if not at or ":" not in user:
        return url
    return f"{scheme}{mark}{user.partition(':')[0]}:***@{host}"


@asynccontextmanager
async def open_store(target: Target) -> AsyncIterator[PoolStore]:
    """Open the pool's store, having seen the server answer; its loss later is Unreachable too.

    Raises:
        Unreachable: the server did not answer; the message says how to go on.
        ConfigError: the server refused the credentials.
    """
    url = target.url()
    with server_errors(url):
        redis = open_redis(url, pool=target.pool)
        try:
            await redis.ping()
            yield PoolStore(redis, target.keys)
        finally:
            await redis.aclose()


@contextmanager
def server_errors(url: str) -> Iterator[None]:
    """Turn what redis-py raises about a lost or refusing server into an error with its cure."""
    shown = shown_url(url)
    try:
        yield
    except BrokenPipeError:
        raise  # of our own standard output: redis-py raises errors of its own kind
    except (AuthenticationError, AuthorizationError) as error:
        raise ConfigError(
            f"{shown} refused the credentials: {error}; put them into the URL as "
            "redis://user:password@host:6379/0"
        ) from None
    except ResponseError as error:
        raise LMPoolError(f"the server answered: {error}") from None
    except (RedisError, ConnectionError, TimeoutError) as error:
        if cure := tls_cure(error):
            raise ConfigError(f"{shown}: {cure}") from None
        raise Unreachable(
            f"no server answers at {shown} ({describe(error)}): "
            "run `lmpoolctl up`, start the server, or give another --redis-url"
        ) from None


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --redis-url, --pool and --state-dir; the command's first argument is the Target."""

    @click.option(
        "--redis-url",
        envvar=["LMPOOL_REDIS_URL", "REDIS_URL"],
        show_envvar=True,
        help="Server of the pool; default: the one that `up` runs in the state directory.",
    )
    @click.option(
        "--pool", envvar="LMPOOL_POOL", default=DEFAULT_POOL, show_default=True, show_envvar=True
    )
    @click.option(
        "--state-dir",
        envvar="LMPOOL_STATE",
        default=DEFAULT_STATE_DIR,
        show_default=True,
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where `up` keeps the server's data and the logs.",
    )
    @functools.wraps(command)
    def with_target(
        *args: Any, redis_url: str | None, pool: str, state_dir: Path, **options: Any
    ) -> Any:
        folder = state_dir.expanduser().absolute()
        return command(Target(redis_url or None, pool, folder), *args, **options)

    return with_target


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
