"""The heartbeat: a thread and a connection of its own, so that no compile looks like death."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from redis.exceptions import RedisError, ResponseError

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import describe, open_redis

log = logging.getLogger(__name__)

TTL_MS = 3000
EVERY_S = 1.0


class Heartbeat:
    """Renews one epoch's claim on its rank until it is stopped or fenced."""

    def __init__(
        self,
        url: str,
        keys: Keyspace,
        rank: int,
        epoch: str,
        *,
        version: Callable[[], int],
        stuck_ms: Callable[[], int],
        on_weight: Callable[[float], None],
        on_fenced: Callable[[], None],
    ) -> None:
        """Prepare the thread.

        Args:
            url: of the server.
            keys: of the pool.
            rank: the rank claimed.
            epoch: under which it is held.
            version: called on the thread: the last report that the server acknowledged. A server
                that has an older one has forgotten, and even an idle worker has to join again.
            stuck_ms: called on the thread: for how long the worker has had work and finished none
                of it. It keeps the claim only while that is short.
            on_weight: called on the thread with `w_decode`, as the pool has it now, at each beat.
            on_fenced: called on the thread when the rank was taken away.
        """
        self._redis = open_redis(url, pool=keys.pool, timeout_s=EVERY_S)
        self._words = ("FCALL", "heartbeat", 1, keys.load, rank, epoch, TTL_MS)
        self._version = version
        self._stuck_ms = stuck_ms
        self._on_weight = on_weight
        self._on_fenced = on_fenced
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the claim lapses by itself."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # An event loop of the thread's own: the client is the one of every other connection.
        with asyncio.Runner() as runner:
            try:
                self._beat(runner)
            finally:
                runner.run(self._redis.aclose())

    def _beat(self, runner: asyncio.Runner) -> None:
        missed = 0
        following_s = time.monotonic()
        while not self._stop.wait(max(0.0, following_s - time.monotonic())):
            following_s = time.monotonic() + EVERY_S
            try:
                words = (*self._words, self._version(), self._stuck_ms())
                weight = runner.run(self._redis.execute_command(*words))  # type: ignore[no-untyped-call]
                self._on_weight(float(weight))
                missed = 0
            except ResponseError as error:
                if str(error).startswith(("STALE_EPOCH", "NORANK")):
                    log.warning("claim lost", extra={"why": str(error)})
                    self._on_fenced()
                    return
                missed += 1
                log.warning("heartbeat refused", extra={"why": str(error), "missed": missed})
            except (RedisError, OSError) as error:
                missed += 1
                following_s = time.monotonic() + EVERY_S / 4
                if missed == 1:
                    log.warning("heartbeat missed", extra={"why": describe(error)})
