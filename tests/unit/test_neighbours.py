"""Which ranks can move blocks, from what their workers say."""

import pytest

from lmpoold.core.neighbours import choose_way, linked


def facts(way="auto", device="cpu", host="a", **more):
    return {"way": way, "device": device, "host": host, **more}


def gpu(name, *near, host="a"):
    """A worker on a GPU that knows its neighbours."""
    return facts(device="cuda:0", host=host, gpu=name, near=",".join(near))


@pytest.mark.parametrize(
    ("one", "other", "way"),
    [
        (facts(), facts(), "gloo"),
        (facts(device="cuda:0"), facts(device="cuda:1"), "nccl"),
        (facts("peer"), facts("peer"), "peer"),
        (facts("peer"), facts(), "peer"),
    ],
)
def test_two_workers_use_a_way_that_both_have(one, other, way):
    assert choose_way(one, other) == choose_way(other, one) == way


def test_without_pairs_everybody_is_everybodys_neighbour_both_ways():
    found = linked({0: facts(), 1: facts(), 2: facts(host="b")}, "")
    assert found.ways == {(0, 1): "gloo", (1, 0): "gloo"}
    assert set(found.refused) == {(0, 2), (1, 2)}


def test_named_pairs_leave_out_the_others():
    everyone = {rank: facts() for rank in range(4)}
    found = linked(everyone, "0-1,3-2")
    assert set(found.ways) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert "`pairs` (0-1,3-2) leave them out" in found.refused[1, 2].reason


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (facts("peer"), facts("gloo"), "--transport gloo and peer: give both the same"),
        (facts(host="a"), facts(host="b"), "on hosts a and b: blocks move within one host"),
        (gpu("A", "B"), gpu("B", "A", host="b"), "on hosts a and b"),
        (facts(), {"device": "cpu", "host": "a"}, "a worker of them moves no blocks"),
        (facts(device="cuda:0"), facts(), "one of them is on a GPU and the other is not"),
        (gpu("A", "B"), gpu("C", "D"), "GPUs A and C have no direct link"),
    ],
)
def test_two_workers_without_a_way_are_told_why(one, other, reason):
    found = linked({0: one, 1: other}, "")
    assert found.ways == {}
    assert reason in found.refused[0, 1].reason


def test_the_neighbours_that_workers_name_are_linked_without_any_setting():
    bridged = {0: gpu("A", "B"), 1: gpu("B", "A"), 2: gpu("C", "D"), 3: gpu("D", "C")}
    found = linked(bridged, "")
    assert set(found.ways) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert set(found.refused) == {(0, 2), (0, 3), (1, 2), (1, 3)}


def test_pairs_that_are_named_override_what_workers_say():
    bridged = {0: gpu("A", "B"), 1: gpu("B", "A"), 2: gpu("C", "")}
    assert set(linked(bridged, "0-2").ways) == {(0, 2), (2, 0)}


def test_no_setting_links_two_hosts():
    found = linked({0: facts(host="a"), 1: facts(host="b")}, "0-1")
    assert found.ways == {}
    assert "within one host" in found.refused[0, 1].reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (gpu("A", "B"), facts(device="cuda:1")),
        (gpu("#0", "#1"), gpu("B", "A")),
        (gpu("A", "B"), gpu("A", "B")),
    ],
)
def test_gpus_whose_places_cannot_be_compared_may_try(one, other):
    assert set(linked({0: one, 1: other}, "").ways) == {(0, 1), (1, 0)}
