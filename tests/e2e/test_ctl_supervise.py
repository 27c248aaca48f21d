"""The supervisor with real child processes."""

import asyncio
import os
import subprocess
import sys

import pytest

from ctl.statedir import StateDir, owned, started_at
from ctl.supervise import (
    FIRST_DELAY_S,
    GIVE_UP_STARTS,
    LAST_DELAY_S,
    Program,
    Supervisor,
    describe_exit,
    restart_delay_s,
)
from lmpoold.protocol.errors import ConfigError, LMPoolError
from tests.e2e.ctl_program import runs

SLEEPER = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('here', flush=True); time.sleep(600)"
)
LAST_WORDS = "import sys; print('the shape is unknown', flush=True); sys.exit(2)"


def program(name, text):
    return Program(name, (sys.executable, "-c", text))


async def until(predicate, within_s=20.0):
    async with asyncio.timeout(within_s):
        while True:
            if predicate():
                return
            await asyncio.sleep(0.01)


def says_here(child):
    return child.pid is not None and "here" in child.last_lines()


@pytest.fixture
def folder(tmp_path):
    with owned(tmp_path / "state") as folder:
        yield folder


@pytest.fixture
async def supervised(folder):
    """A supervisor that does not wait long, what it said, and nothing left behind the test."""
    said = []
    supervisor = Supervisor(folder, said.append, os.environ, first_delay_s=0.001)
    yield supervisor, said
    supervisor.hurry()
    await supervisor.stop()


async def test_a_child_that_is_killed_is_started_again_and_a_line_says_so(supervised):
    supervisor, said = supervised
    (child,) = supervisor.start([program("worker-0", SLEEPER)])
    await until(lambda: says_here(child))
    first = child.pid
    os.kill(first, 9)
    await until(lambda: child.pid not in (None, first))
    assert any("worker-0 ended (SIGKILL): starting it again" in line for line in said)
    assert not runs(first)


async def test_exit_code_2_is_final_and_shows_the_last_words(supervised):
    supervisor, said = supervised
    supervisor.start([program("worker-0", LAST_WORDS)])
    with pytest.raises(ConfigError, match="worker-0"):
        await supervisor.guard(asyncio.Event().wait())
    assert said == ["  worker-0 | the shape is unknown"]


async def test_what_is_guarded_is_cancelled_when_a_child_fails(supervised):
    supervisor, _ = supervised
    cancelled = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    supervisor.start([program("worker-0", LAST_WORDS)])
    with pytest.raises(ConfigError):
        await supervisor.guard(work())
    assert cancelled == [True]


async def test_guarded_work_gives_its_result_and_its_error(supervised):
    supervisor, _ = supervised

    async def fails():
        raise LMPoolError("no")

    async def works():
        return 7

    assert await supervisor.guard(works()) == 7
    with pytest.raises(LMPoolError, match="no"):
        await supervisor.guard(fails())


async def test_a_child_that_keeps_dying_before_all_is_up_ends_the_attempt(supervised):
    supervisor, said = supervised
    supervisor.start([program("worker-0", "raise SystemExit(1)")])
    with pytest.raises(LMPoolError, match=f"{GIVE_UP_STARTS} times"):
        await supervisor.guard(asyncio.Event().wait())
    assert sum("starting it again" in line for line in said) == GIVE_UP_STARTS - 1


async def test_once_all_was_up_no_number_of_deaths_is_final(supervised):
    supervisor, said = supervised
    supervisor.settled = True
    supervisor.start([program("worker-0", "raise SystemExit(1)")])
    await supervisor.guard(until(lambda: len(said) > GIVE_UP_STARTS))


async def test_workers_end_before_the_lmpoolds_they_need(supervised, tmp_path):
    supervisor, _ = supervised
    order = tmp_path / "order"
    text = (
        "import signal, sys, time, pathlib\n"
        f"def end(*_):\n  pathlib.Path({str(order)!r}).open('a').write(sys.argv[1] + '\\n')\n"
        "  sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('here', flush=True)\ntime.sleep(600)"
    )
    names = ["lmpoold-0", "lmpoold-1", "worker-0", "worker-1"]
    children = supervisor.start(
        [Program(name, (sys.executable, "-c", text, name)) for name in names]
    )
    await until(lambda: all(map(says_here, children)))
    await supervisor.stop()
    ended = order.read_text(encoding="utf-8").split()
    assert sorted(ended) == names
    assert {name.partition("-")[0] for name in ended[:2]} == {"worker"}


async def test_stop_kills_a_child_that_will_not_end_when_told_to_hurry(supervised):
    supervisor, _ = supervised
    (child,) = supervisor.start([program("worker-0", STUBBORN)])
    await until(lambda: says_here(child))
    pid = child.pid
    supervisor.hurry()
    await supervisor.stop()
    assert not runs(pid)


async def test_a_log_begins_anew_and_the_one_before_is_kept(supervised, folder):
    supervisor, _ = supervised
    log = folder.log("worker-0")
    log.write_text('{"msg": "ready"}\n', encoding="utf-8")
    (child,) = supervisor.start([program("worker-0", SLEEPER)])
    await until(lambda: says_here(child))
    assert not child.logged("ready")
    assert "ready" in log.with_suffix(".log.old").read_text(encoding="utf-8")


def test_a_child_whose_owner_was_killed_is_ended_by_the_next_owner(folder):
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    try:
        folder.remember("worker-0", child.pid)
        assert StateDir(folder.path).end_leftovers() == ["worker-0"]
        assert not runs(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_pid_that_was_used_again_is_not_taken_for_a_child(folder):
    folder.remember("worker-0", os.getpid())
    record = folder.path / "children.json"
    text = record.read_text(encoding="utf-8")
    record.write_text(text.replace(started_at(os.getpid()), "1"), encoding="utf-8")
    assert folder.end_leftovers() == []
    assert not record.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"worker-0": 3}', '{"worker-0": ["x", "1"]}'])
def test_a_record_that_was_cut_short_is_no_record(folder, text):
    (folder.path / "children.json").write_text(text, encoding="utf-8")
    assert folder.end_leftovers() == []


def test_a_state_directory_has_one_owner_at_a_time(tmp_path):
    state = tmp_path / "state"
    with owned(state), pytest.raises(ConfigError, match=rf"pid {os.getpid()}"), owned(state):
        pass
    with owned(state):
        pass


def test_a_state_directory_that_cannot_be_made_is_the_operator_s_business(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="--state-dir"), owned(tmp_path / "file" / "state"):
        pass


def test_delays_grow_from_half_a_second_to_ten():
    delays = [restart_delay_s(deaths) for deaths in range(1, 2000)]
    assert delays[0] == FIRST_DELAY_S == 0.5
    assert delays == sorted(delays)
    assert delays[-1] == LAST_DELAY_S == 10.0


@pytest.mark.parametrize(("code", "text"), [(0, "exit 0"), (2, "exit 2"), (-9, "SIGKILL")])
def test_an_exit_is_described_in_words(code, text):
    assert describe_exit(code) == text


async def test_work_that_takes_its_cancelling_for_a_lost_connection_does_not_hold_the_stop(
    supervised,
):
    supervisor, _ = supervised
    lost = []

    async def watch():
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:  # as clients do whose call was under way
                if len(lost) == 2:
                    raise
                lost.append("a connection")

    supervisor.own(watch(), "watch")
    await asyncio.sleep(0)
    async with asyncio.timeout(15):
        await supervisor.stop()
    assert len(lost) == 2
