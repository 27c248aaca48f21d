import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.protocol.hashing import chain_hashes, domain_root
from lmpoold.protocol.request import Sampling
from workers.core.sequence import Sequence, finish_reason

ROOT = domain_root("model", 4)


def sequence(prompt: int, tokens: list[int], **sampling: object) -> Sequence:
    return Sequence(
        request_id="r",
        attempt=1,
        prompt_tokens=prompt,
        tokens=tokens,
        sampling=Sampling(**{"max_tokens": 3, **sampling}),
        priority=0,
        arrival=0,
        deadline_ms=0,
        root=ROOT,
    )


@given(tokens=st.lists(st.integers(0, 9), max_size=30), cuts=st.lists(st.integers(0, 30)))
def test_names_grown_step_by_step_equal_those_of_the_whole(tokens: list[int], cuts: list[int]):
    grown = sequence(1, [])
    for cut in [*sorted(cuts), len(tokens)]:
        grown.tokens = tokens[:cut]
        grown.name_blocks(4)
    assert tuple(grown.hashes) == chain_hashes(tokens, 4, ROOT)


def test_progress_is_counted_over_all_attempts():
    resumed = sequence(2, [1, 2, 3, 4, 5])
    resumed.computed, resumed.limit = 3, 9
    assert (resumed.output_tokens, resumed.missing, resumed.remaining) == (3, 2, 4)
    assert not resumed.decoding
    resumed.computed = 4
    assert resumed.decoding


@pytest.mark.parametrize(("limit", "blocks"), [(4, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_the_last_token_it_may_emit_needs_no_slot(limit: int, blocks: int):
    one = sequence(1, [1])
    one.limit = limit
    assert one.most_blocks(4) == blocks


@pytest.mark.parametrize(
    ("tokens", "sampling", "reason"),
    [
        ([1, 2, 7], {}, "stop"),
        ([1, 2, 7], {"ignore_eos": True}, None),
        ([1, 2, 3], {}, None),
        ([1, 2, 3, 3], {}, None),
        ([1, 2, 3, 3, 3], {}, "length"),
        ([1, 2, 3, 3, 7], {}, "stop"),
        ([1, 2, 3, 3, 7], {"ignore_eos": True}, "length"),
        ([1, 2, 3], {"max_tokens": 1}, "length"),
        ([1, 2, *[3] * 6], {"max_tokens": 100}, "length"),
        ([1, 2, *[3] * 5], {"max_tokens": 100}, None),
    ],
)
def test_a_sequence_ends_at_a_stop_token_or_at_the_nearer_limit(
    tokens: list[int], sampling: dict[str, object], reason: str | None
):
    assert finish_reason(sequence(2, tokens, **sampling), frozenset({7}), 8) == reason


def test_a_stop_token_in_the_prompt_does_not_end_an_answer():
    assert finish_reason(sequence(2, [7, 7, 3]), frozenset({7}), 8) is None


def test_what_people_wrote_does_not_show_in_a_traceback():
    assert "4711" not in repr(sequence(1, [4711]))
