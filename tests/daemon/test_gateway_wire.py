"""Callers that leave: the work ends first, and nobody else's cancellation is taken for it."""

import asyncio

import pytest

from lmpoold.gateway.wire import CallerLeft, unless_gone


class Line:
    """A connection whose end a test decides."""

    def __init__(self):
        self.closed = asyncio.Event()

    async def receive(self):
        await self.closed.wait()
        return {"type": "http.disconnect"}


async def test_work_that_ends_first_gives_its_result_and_leaves_no_task():
    line = Line()

    async def work():
        await asyncio.sleep(0)
        return 7

    assert await unless_gone(work(), line.receive) == 7
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_caller_that_leaves_ends_the_work_clean_up_included():
    line, steps = Line(), []

    async def work():
        try:
            line.closed.set()
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    with pytest.raises(CallerLeft):
        await unless_gone(work(), line.receive)
    assert steps == ["cleaned up"]
    await asyncio.sleep(0)  # no cancellation is left over for what comes next
    assert not asyncio.current_task().cancelling()


async def test_the_end_of_the_answer_itself_is_no_leaving():
    line = Line()

    async def work():
        await asyncio.sleep(0)
        line.closed.set()
        return "sent"

    assert await unless_gone(work(), line.receive) == "sent"
    await asyncio.sleep(0.01)
    assert not asyncio.current_task().cancelling()


async def test_a_cancellation_from_outside_stays_one():
    line = Line()
    task = asyncio.create_task(unless_gone(asyncio.sleep(30), line.receive))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_comes_through():
    async def work():
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await unless_gone(work(), Line().receive)
