"""Which ranks can move blocks, from what their workers say."""

import pytest

from lmpoold.core.neighbours import choose_way, linked


def facts(way="auto", device="cpu", host="a"):
    return {"way": way, "device": device, "host": host}


@pytest.mark.parametrize(
    ("one", "other", "way"),
    [
        (facts(), facts(), "gloo"),
        (facts(device="cuda:0"), facts(device="cuda:1"), "nccl"),
        (facts(device="cuda:0"), facts(), "gloo"),
        (facts("peer"), facts("peer"), "peer"),
        (facts("peer"), facts(), "peer"),
        (facts("peer"), facts("gloo"), ""),
        (facts(host="a"), facts(host="b"), ""),
        (facts(), {"device": "cpu", "host": "a"}, ""),
    ],
)
def test_two_workers_use_a_way_that_both_have(one, other, way):
    assert choose_way(one, other) == choose_way(other, one) == way


def test_without_pairs_everybody_is_everybodys_neighbour_both_ways():
    found = linked({0: facts(), 1: facts(), 2: facts(host="b")}, "")
    assert found == {(0, 1): "gloo", (1, 0): "gloo"}


def test_named_pairs_leave_out_the_others():
    everyone = {rank: facts() for rank in range(4)}
    assert set(linked(everyone, "0-1,3-2")) == {(0, 1), (1, 0), (2, 3), (3, 2)}
