"""What moving a cold chain to a neighbour is worth."""

from hypothesis import given
from hypothesis import strategies as st

from workers.core.cold import Cold, Room

CHAIN = tuple("abcdefghij")


def room(free=0, once_used=0, reuse_share=0.0):
    return Room(
        rank=1,
        free=free,
        once_used=once_used,
        reuse_share=reuse_share,
        fixed_us=100.0,
        block_us=10.0,
    )


def test_free_blocks_cost_nothing_but_the_way():
    offer = room(free=10).offer(Cold(CHAIN, keep=4, reuses=2.0), 1000.0)
    assert (offer.rank, offer.saved_us, offer.cost_us) == (1, 12_000.0, 200.0)


def test_what_the_neighbour_forgets_for_it_is_taken_off_as_it_may_be_wanted_too():
    offer = room(free=7, once_used=5, reuse_share=0.5).offer(Cold(CHAIN, 4, 2.0), 1000.0)
    assert offer.saved_us == 12_000 - 3 * 0.5 * 1000


@given(st.integers(-5, 20), st.integers(0, 20))
def test_there_is_room_in_free_blocks_and_in_those_that_nothing_found(free, once_used):
    assert room(free=free, once_used=once_used).blocks == max(0, free) + once_used


@given(st.floats(0, 1), st.integers(0, 10), st.integers(0, 10))
def test_a_chain_like_those_it_displaces_saves_nothing(share, free, keep):
    cold = Cold(CHAIN, keep, share)
    offer = room(free=free, once_used=20, reuse_share=share).offer(cold, 1000.0)
    displaced = max(0, 10 - free)
    assert offer.saved_us <= share * max(0, (10 - keep) - displaced) * 1000 + 1e-6
