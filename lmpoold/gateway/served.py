"""What the pool behind the gateway serves, read from its `cfg` now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from lmpoold.gateway.faults import Fault, unknown_model, unreachable
from lmpoold.gateway.rendering import model_row
from lmpoold.protocol.state import PoolState
from lmpoold.protocol.views import RankRow
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state

FRESH_S = 5.0
"""How old a reading of `cfg` gets; lmpoold checks the model of each request anyway."""
ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Model:
    """The one model of the pool."""

    name: str
    max_model_len: int


class Served:
    """The pool's model under its own name and others, and its ranks."""

    def __init__(self, store: PoolStore, names: Sequence[str]) -> None:
        """Read through `store`; `names` are served beside the pool's own name for its model."""
        self._store = store
        self._names = tuple(names)
        self._model: Model | None = None
        self._began_s = int(time.time())

    async def model(self) -> Model:
        """Return the pool's model; only a gateway that does not know it yet asks for it here.

        Raises: Fault: 503, no lmpoold has described the pool, or the server was never reached.
        """
        if self._model is None and not await self._read():
            raise unreachable()
        if self._model is None:
            raise Fault(
                503,
                "server_error",
                "pool_not_ready",
                "no lmpoold has described this pool yet; start one, or wait for it",
                headers={"Retry-After": "1"},
            )
        return self._model

    async def keep_fresh(self) -> None:
        """Read the model every `FRESH_S`, for ever: no request has to wait for it then."""
        while True:
            await self._read()
            await asyncio.sleep(FRESH_S)

    async def _read(self) -> bool:
        """Read the model; False if the server is away, and an old reading has to do."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                self._model = _model_of(await self._store.cfg()) or self._model
        except (RedisError, OSError):
            return False
        return True

    async def resolve(self, asked: str) -> str:
        """Return the pool's name for the model a caller asks for; Fault 404 for any other."""
        model = await self.model()
        if asked != model.name and asked not in self._names:
            raise unknown_model(asked, " or ".join((model.name, *self._names)))
        return model.name

    async def rows(self) -> list[dict[str, Any]]:
        """Return OpenAI's list of models: one a name."""
        model = await self.model()
        names = dict.fromkeys((model.name, *self._names))
        return [model_row(name, self._began_s, model.max_model_len) for name in names]

    async def ranks(self) -> list[RankRow] | None:
        """Return the pool's ranks, None if the server does not answer in time."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await self._store.ranks()
        except (RedisError, OSError):
            return None

    async def state(self) -> PoolState | None:
        """Return the pool at this moment, None if the server does not answer in time."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await read_state(self._store)
        except (RedisError, OSError):
            return None


def _model_of(cfg: Mapping[str, str]) -> Model | None:
    if "model" not in cfg:
        return None
    return Model(cfg["model"], int(cfg.get("max_model_len", "0")))
