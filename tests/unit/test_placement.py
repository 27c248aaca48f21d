"""Which hot prefixes are copied ahead, gate by gate."""

from dataclasses import replace

import pytest

from lmpoold.core.placement import Gates, Hot, decide_placement
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import RankRow

LEAF = PrefixHash("a" * 32)
GATES = Gates(threshold=10, skew=2, idle=4, ratio=1.5)
NOBODY = frozenset()


def row(rank, *, sequences=0, free=100, reserved=0):
    numbers = dict.fromkeys(RankRow.__dataclass_fields__, 0)
    numbers |= {"state": "up", "device": "cpu", "host": "h", "pid": "1"}
    numbers |= {"rank": rank, "sequences": sequences, "free": free, "reserved": reserved}
    return RankRow(**numbers)


def hot(leaf=LEAF, *, blocks=10, found=50.0, holders=frozenset({0})):
    return Hot(leaf, blocks, found, holders)


def decide(hots, *, rows=None, us=10.0, cost=100.0, cooling=NOBODY, gates=GATES, pairs=((0, 1),)):
    rows = rows or {0: row(0, sequences=8), 1: row(1)}
    return decide_placement(
        hots,
        rows,
        {pair: lambda blocks: cost * blocks for pair in pairs},
        lambda rank: us,
        lambda leaf, pair: (leaf, pair) in cooling,
        16,
        gates,
    )


def test_a_hot_prefix_of_a_busy_owner_goes_to_an_idle_neighbour():
    (copy,), refusals = decide([hot()])
    assert (copy.source, copy.destination) == (0, 1)
    assert (copy.saved_us, copy.cost_us) == (1600.0, 1000.0)
    assert refusals == []


@pytest.mark.better(11)
@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"rows": {0: row(0, sequences=1), 1: row(1)}}, "even_load", "gap=1 skew=2"),
        ({"rows": {0: row(0, sequences=9), 1: row(1, sequences=5)}}, "target_busy", "sequences=5"),
        ({"rows": {0: row(0, sequences=9), 1: row(1, free=9)}}, "no_room", "free=9 blocks=10"),
        (
            {"rows": {0: row(0, sequences=9), 1: row(1, free=12, reserved=3)}},
            "no_room",
            "free=9 blocks=10",
        ),
        ({"us": 9.0}, "low_benefit", "saved_us=1440 cost_us=1000"),
    ],
)
def test_each_gate_refuses_with_its_numbers(changes, reason, said):
    copies, (refusal,) = decide([hot()], **changes)
    assert copies == []
    assert (refusal.reason, refusal.said, refusal.pair) == (reason, said, (0, 1))


@pytest.mark.parametrize(
    ("one", "changes"),
    [
        (hot(found=9.0), {}),
        (hot(holders=frozenset({0, 1})), {}),
        (hot(holders=frozenset({2})), {}),
        (hot(), {"cooling": {(LEAF, (0, 1))}}),
        (hot(), {"pairs": ((1, 0),)}),
        (hot(), {"rows": {0: row(0, sequences=8)}}),
    ],
)
def test_what_is_no_candidate_is_neither_copied_nor_refused(one, changes):
    assert decide([one], **changes) == ([], [])


def test_without_a_learnt_pace_nothing_is_copied():
    copies, (refusal,) = decide([hot()], us=None)
    assert copies == []
    assert refusal.reason == "low_benefit"


def test_a_link_carries_the_hottest_prefix_first_and_one_a_turn():
    other = PrefixHash("b" * 32)
    (copy,), _ = decide([hot(other, found=20.0), hot(found=90.0)])
    assert copy.hot.leaf == LEAF


def test_room_given_to_one_copy_is_not_given_to_the_next():
    other = PrefixHash("b" * 32)
    rows = {0: row(0, sequences=8), 1: row(1, free=15), 2: row(2, sequences=8)}
    hots = [hot(found=90.0), hot(other, found=80.0, holders=frozenset({2}))]
    (copy,), (refusal,) = decide(hots, rows=rows, pairs=((0, 1), (2, 1)))
    assert copy.hot.leaf == LEAF
    assert (refusal.leaf, refusal.reason) == (other, "no_room")


def test_a_prefix_is_copied_to_one_rank_a_turn():
    rows = {0: row(0, sequences=8), 1: row(1), 2: row(2)}
    copies, _ = decide([hot()], rows=rows, pairs=((0, 1), (0, 2)))
    assert len(copies) == 1


def test_a_ratio_of_nothing_admits_whatever_passes_the_other_gates():
    copies, _ = decide([hot()], us=0.001, gates=replace(GATES, ratio=0.0))
    assert len(copies) == 1
