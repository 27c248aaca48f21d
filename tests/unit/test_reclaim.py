from hypothesis import given
from hypothesis import strategies as st

from workers.core.reclaim import LeafHeap, lfu_then_lru, lru, lru_with_credit


def test_frequency_goes_before_recency_and_depth_before_the_id():
    once_old, once_new, twice_old = (1, 1.0, 0, 0), (1, 5.0, 0, 1), (2, 0.0, 0, 2)
    deep_old = (1, 1.0, 3, 9)
    order = sorted([twice_old, once_new, once_old, deep_old], key=lambda leaf: lfu_then_lru(*leaf))
    assert order == [deep_old, once_old, once_new, twice_old]


def test_lru_ignores_how_often_a_block_was_used():
    assert lru(9, 1.0, 0, 0) < lru(1, 2.0, 0, 1)
    assert lru(1, 1.0, 5, 7) < lru(1, 1.0, 4, 0) < lru(1, 1.0, 4, 1)


def test_a_hit_earns_its_credit_and_no_more():
    key = lru_with_credit(600.0)
    assert key(1, 500.0, 0, 0) < key(2, 0.0, 0, 1) < key(1, 601.0, 0, 2)


@given(st.lists(st.tuples(st.sampled_from("pwo"), st.integers(0, 9), st.integers(0, 3))))
def test_the_heap_gives_the_smallest_key_of_those_present(steps: list[tuple[str, int, int]]):
    heap, present = LeafHeap(), {}
    for step, block, key in steps:
        if step == "p" and block not in present:
            present[block] = (key, block)
            heap.put(block, present[block])
        elif step == "w":
            present.pop(block, None)
            heap.withdraw(block)
        elif step == "o" and present:
            smallest = min(present, key=present.__getitem__)
            assert heap.pop() == smallest
            del present[smallest]
        heap.check(set(present))
        assert heap.coldest(3) == sorted(present, key=present.__getitem__)[:3]
        heap.check(set(present))
        assert len(heap) == len(present)
        assert (block in heap) == (block in present)


def test_leaves_that_come_and_go_leave_no_trace():
    heap = LeafHeap()
    heap.put(0, (0,))
    for turn in range(10_000):
        heap.put(1, (turn,))
        heap.withdraw(1)
    assert len(heap._heap) < 100
    assert heap.pop() == 0
