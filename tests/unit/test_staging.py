"""The size of a snapshot's chunks."""

from lmpoold.store.staging import BUDGET_S, FIRST_PAGES, LEAST_PAGES, MOST_PAGES, ChunkSize


def settled(page_us: float) -> int:
    """The size after a while on a server that needs `page_us` a page."""
    size = ChunkSize()
    for _ in range(20):
        size.learn(size.pages, size.pages * page_us / 1e6)
    return size.pages


def test_a_chunk_fits_the_budget():
    for page_us in (0.5, 2, 4, 8, 16):
        pages = settled(page_us)
        assert pages == MOST_PAGES or pages * page_us / 1e6 <= BUDGET_S < 2 * pages * page_us / 1e6


def test_chunks_are_bounded_both_ways():
    assert settled(1e-3) == MOST_PAGES
    assert settled(1000) == LEAST_PAGES
    assert settled(0.0) == MOST_PAGES


def test_a_slower_server_gets_smaller_chunks():
    sizes = [settled(page_us) for page_us in (2.5, 5, 10, 20)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_a_size_is_reached_by_doubling():
    size = ChunkSize()
    size.learn(size.pages, 1e-9)
    assert size.pages == 2 * FIRST_PAGES


def test_a_chunk_that_waited_for_a_processor_is_soon_forgotten():
    size = ChunkSize()
    for took_us in (5, 5, 400, 5, 5, 5):
        size.learn(size.pages, size.pages * took_us / 1e6)
    assert size.pages == settled(5)


def test_a_server_that_became_slow_is_believed_at_once():
    size = ChunkSize()
    for took_us in (5, 5, 5, 20):
        size.learn(size.pages, size.pages * took_us / 1e6)
    assert size.pages == settled(20)
