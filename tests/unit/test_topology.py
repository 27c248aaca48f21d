"""The pure half of topology: matrices in any dress, CUDA_VISIBLE_DEVICES, ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.core.neighbours import linked
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.topology import (
    Connection,
    Gpu,
    Topology,
    parse_matrix,
    parse_pairs,
    place_of,
    visible,
)

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
TWO_H200 = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \t0-31\t0\t\tN/A\n" + LEGEND
)
FOUR_3090 = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tSYS\tSYS\tPHB\t0-15\t0\n"
    "GPU1\tNV4\t X \tSYS\tSYS\tPHB\t0-15\t0\n"
    "GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31\t1\n"
    "GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31\t1\n"
    "NIC0\tPHB\tPHB\tSYS\tSYS\t X \n" + LEGEND
)
UUIDS = [f"GPU-{at:x}{at:x}aa0000-0000-4000-8000-00000000000{at:x}" for at in range(16)]


@st.composite
def boxes(draw):
    """A symmetric matrix of 1 to 16 GPUs: what is between each two of them."""
    count = draw(st.integers(1, 16))
    cell = st.sampled_from(["SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV4", "NV12", "NV18"])
    return count, {
        (low, high): draw(cell) for low in range(count) for high in range(low + 1, count)
    }


@st.composite
def dresses(draw, box):
    """The box as some release of nvidia-smi prints it."""
    count, cells = box
    nics = draw(st.integers(0, 3))
    underlined = draw(st.booleans())
    names = [f"GPU{at}" for at in range(count)] + [f"NIC{at}" for at in range(nics)]
    head = "\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m" if underlined else head]
    for low in range(count):
        row = [
            " X " if high == low else cells[min(low, high), max(low, high)] for high in range(count)
        ]
        lines.append("\t".join([f"GPU{low}", *row, *["PHB"] * nics, "0-31", "0", "\tN/A"]))
    lines += ["\t".join([f"NIC{at}", *["PHB"] * len(names)]) for at in range(nics)]
    banner = draw(st.sampled_from(["", "some warning of the driver\n", "\n\n"]))
    return banner + "\n".join(lines) + "\n" + draw(st.sampled_from(["", LEGEND]))


@pytest.mark.better(13)
@given(boxes().flatmap(lambda box: st.tuples(st.just(box), dresses(box))))
def test_a_matrix_in_any_dress_gives_the_pairs_that_nvlink_joins(drawn):
    (count, cells), text = drawn
    found = parse_matrix(text)
    assert [gpu.index for gpu in found.gpus] == list(range(count))
    assert {(one.low, one.high): one.links for one in found.connections} == {
        pair: int(cell[2:]) for pair, cell in cells.items() if cell.startswith("NV")
    }


def test_the_matrix_of_two_gpus_behind_a_switch():
    assert parse_matrix(TWO_H200).connections == (Connection(0, 1, links=18),)


def test_bridged_pairs_are_neighbours_and_the_rest_is_not():
    found = parse_matrix(FOUR_3090)
    assert [found.neighbours(at) for at in range(4)] == [{1}, {0}, {3}, {2}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no line begins with GPU0"),
        ("NVIDIA-SMI has failed because it could not communicate", "no line begins with GPU0"),
        ("GPU0 GPU1\nGPU0 X NV4\n", "row of GPU1 has 0 of 2 cells"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4\n", "row of GPU1 has 1 of 2 cells"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 SYS X\n", "GPU0 is NV4 to GPU1, which is SYS back"),
        ("GPU0 GPU1\nGPU0 X what\nGPU1 what X\n", "row of GPU0"),
        ("GPU0 GPU2\nGPU0 X NV4\nGPU2 NV4 X\n", "columns are GPU0, GPU2"),
    ],
)
def test_a_text_that_is_no_matrix_is_refused_by_name(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_matrix(text)


@given(st.text())
def test_no_text_makes_the_parser_crash(text):
    try:
        parse_matrix(text)
    except ConfigError:
        return


def test_a_worker_names_its_gpu_and_its_neighbours_as_every_process_of_the_host_does():
    gpus = tuple(Gpu(at, f"GPU-{at}") for at in range(4))
    box = Topology("nvml", gpus, parse_matrix(FOUR_3090).connections)
    seen = visible(gpus, "3,GPU-2,1")
    assert place_of(box, seen, 0) == {"gpu": "GPU-3", "near": "GPU-2"}
    assert place_of(box, seen, 2) == {"gpu": "GPU-1", "near": "GPU-0"}, "though it sees no GPU 0"
    with pytest.raises(ConfigError, match="cuda:3 is none of the 3 GPUs"):
        place_of(box, seen, 3)


def test_without_uuids_gpus_are_named_by_their_index():
    box = parse_matrix(FOUR_3090)
    assert place_of(box, visible(box.gpus, "2,3"), 1) == {"gpu": "#3", "near": "#2"}


def test_pairs_by_hand():
    found = parse_pairs("2-1, 0-1,1-2")
    assert found.connections == (Connection(0, 1), Connection(1, 2))
    assert found.neighbours(1) == {0, 2}


@pytest.mark.parametrize("text", ["0", "0-0", "a-b", "0-1-2", "0:1", "-1"])
def test_a_pair_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="no pair of GPUs"):
        parse_pairs(text)


def gpus(count, uuids=True):
    return [Gpu(at, UUIDS[at] if uuids else "") for at in range(count)]


@given(st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)))))
def test_ordinals_follow_the_setting_by_index_or_uuid(drawn):
    count, order = drawn
    by_index = ",".join(str(at) for at in order)
    by_uuid = ", ".join(UUIDS[at][:9] if at % 2 else UUIDS[at] for at in order)
    assert visible(gpus(count), by_index) == visible(gpus(count), by_uuid) == tuple(order)


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("-1", ()),
        ("2", (2,)),
        ("3,1", (3, 1)),
        ("0,9,1", (0,)),
        ("1,-1,2", (1,)),
        ("GPU-none,1", ()),
    ],
)
def test_the_setting_ends_at_the_first_entry_that_names_no_gpu(setting, seen):
    assert visible(gpus(4), setting) == seen


@pytest.mark.parametrize(
    ("setting", "uuids", "reason"),
    [
        ("1,1", True, "names GPU 1 twice"),
        (f"1,{UUIDS[1]}", True, "names GPU 1 twice"),
        ("MIG-1", True, "whole GPUs"),
        (UUIDS[0], False, "only NVML"),
        ("GPU-", True, "begins several"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused_by_name(setting, uuids, reason):
    with pytest.raises(ConfigError, match=reason):
        visible(gpus(4, uuids), setting)


@pytest.mark.better(13)
@given(boxes(), st.data())
def test_ranks_are_linked_as_their_gpus_are_however_each_process_counts(box, data):
    count, cells = box
    connections = [Connection(*pair) for pair, cell in cells.items() if cell.startswith("NV")]
    box_of = Topology("x", tuple(gpus(count)), tuple(connections))
    order = data.draw(st.permutations(range(count)))
    facts = {}
    for rank, index in enumerate(order):
        sees = data.draw(st.lists(st.sampled_from(order), unique=True))
        sees = [other for other in sees if other != index]
        at = data.draw(st.integers(0, len(sees)))
        sees.insert(at, index)
        seen = visible(box_of.gpus, ",".join(map(str, sees)))
        place = place_of(box_of, seen, at)
        facts[rank] = {"way": "auto", "device": f"cuda:{at}", "host": "x", **place}
    found = linked(facts, "").ways
    joined = {frozenset((one.low, one.high)) for one in connections}
    assert {frozenset(order[rank] for rank in pair) for pair in found} == joined
    assert all((two, one) in found for one, two in found)
