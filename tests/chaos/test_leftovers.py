"""The idle check finds each thing that is planted into a clean pool."""

from dataclasses import replace

import pytest

from lmpoold.protocol.views import RankRow
from tests.chaos.leftovers import Picture, judge_idle, stray_keys

PREFIX = "lmpool:{default}:"
ROW = RankRow(
    rank=0,
    state="up",
    blocks=10,
    free=6,
    reclaimable=4,
    reserved=0,
    pages=4,
    sequences=0,
    wait_tokens=0,
    run_tokens=0,
    reserved_tokens=0,
    version=3,
    epoch=7,
    requests=1,
    prompt_tokens=1,
    cached_tokens=0,
    output_tokens=1,
    device="cpu",
    host="here",
    pid="1",
)
CLEAN = Picture(
    ttl_ms={f"{PREFIX}cfg": -1, f"{PREFIX}load": -1, f"{PREFIX}req:a": 500, f"{PREFIX}in": -1},
    prefix=PREFIX,
    rows=(ROW,),
    streams={"in": (0, 0), "w:0": (0, 0)},
    consumers={"in": 2, "w:0": 1},
    parked=0,
    journals=0,
    functions=("lmpool",),
    pages_before={0: {"h": "1:1:0:r"}},
    pages_after={0: {"h": "1:1:0:r"}},
)


def wrong(**changes) -> list[str]:
    return judge_idle(replace(CLEAN, **changes), ranks=1, most_consumers=2)


def test_a_clean_pool_is_clean():
    assert wrong() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttl_ms": {f"{PREFIX}r:0:stage:7:3": -1}}, "stray key"),
        ({"rows": (replace(ROW, reserved=1),)}, "counts load"),
        ({"rows": (replace(ROW, reserved_tokens=9),)}, "counts load"),
        ({"rows": (replace(ROW, sequences=1),)}, "counts load"),
        ({"rows": (replace(ROW, wait_tokens=1),)}, "counts load"),
        ({"rows": (replace(ROW, run_tokens=1),)}, "counts load"),
        ({"rows": (replace(ROW, free=5),)}, "5 blocks free and 4 reclaimable of 10"),
        ({"rows": (replace(ROW, state="down", free=0, reclaimable=0),)}, "0 of 1 ranks are up"),
        ({"streams": {"in": (1, 0)}}, "in holds 1 entries"),
        ({"streams": {"w:0": (0, 1)}}, "1 pending"),
        ({"consumers": {"in": 3}}, "in has 3 consumers"),
        ({"parked": 1}, "1 requests are parked"),
        ({"journals": 2}, "2 journals"),
        ({"functions": ()}, "function library is gone"),
        ({"pages_after": {0: {}}}, "1 pages are not the worker's own"),
        ({"pages_after": {0: {"h": "2:1:0:r"}}}, "2:1:0:r"),
        ({"pages_after": {0: {"h": "1:1:0:r", "i": "2:1:1:h"}}}, "own (2)"),
    ],
)
def test_what_is_left_is_found_and_named(changes, words):
    (line,) = wrong(**changes)
    assert words in line


@pytest.mark.parametrize(
    "key",
    ["cfg", "load", "r:0:pages", "r:11:stats", "r:0:info", "in", "w:3", "dead", "sched:fence"],
)
def test_an_owned_key_may_stay(key):
    assert stray_keys({PREFIX + key: -1}, PREFIX) == []


@pytest.mark.parametrize(
    "key",
    ["req:a", "emitted:a", "out:c", "r:0:alive", "r:0:emitted", "wake", "sched:lead", "r:0:boot"],
)
def test_a_passing_key_needs_a_time_to_live(key):
    assert stray_keys({PREFIX + key: 1000}, PREFIX) == []
    assert stray_keys({PREFIX + key: -1}, PREFIX) == [PREFIX + key]


@pytest.mark.parametrize("key", ["r:0:resv", "parked", "parked:req", "what", "r:x:pages"])
def test_any_other_key_is_stray_whatever_its_time_to_live(key):
    assert stray_keys({PREFIX + key: 1000}, PREFIX) == [PREFIX + key]


def test_a_key_outside_the_pool_is_stray():
    assert stray_keys({"elsewhere": 5}, PREFIX) == ["elsewhere"]
