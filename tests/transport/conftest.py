"""Sides that end with their test."""

import contextlib

import pytest

from tests.transport.sides import SideProcess


@pytest.fixture
async def start_side():
    """Start a side: `await start_side(rank, kind=..., block_tokens=..., blocks=...)`."""
    started = []

    async def start(rank, **config):
        side = await SideProcess.start(rank, **config)
        started.append(side)
        return side

    yield start
    for side in started:
        with contextlib.suppress(ProcessLookupError):
            side.resume()
        await side.end()
