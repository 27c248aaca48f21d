"""The prompts of the matrix have the lengths and the sharing that they are said to have."""

import pytest

from benchmarks.paper.modes import MODES
from benchmarks.paper.profile import dataset_profile
from benchmarks.paper.workloads import OTHER, PARAGRAPH, QUESTIONS, WORKLOADS, workload
from lmpoold.protocol.config import read_constants
from lmpoold.protocol.hashing import domain_root


def profile_of(work, block_size=256):
    tokens = [list(prompt.text.encode()) for prompt in work.prompts]
    return dataset_profile(tokens, block_size, domain_root("m", block_size))


@pytest.mark.parametrize(
    ("name", "tokens", "blocks", "unique", "share"),
    [
        ("routing-1x", 192 * 1911, 1344, 112, 0.862),
        ("routing-3x", 192 * 5655, 4224, 352, 0.914),
        ("routing-5x", 192 * 9399, 6912, 576, 0.899),
        ("load-skew", 192 * 7527, 5568, 87, 0.972),
    ],
)
def test_a_workload_at_full_size_shares_what_the_earlier_system_measured(
    name, tokens, blocks, unique, share
):
    found = profile_of(workload(name, seed=0, chars=117))
    assert found["total_prompt_tokens"] == tokens
    assert found["total_complete_blocks"] == blocks
    assert found["unique_complete_prefix_hashes"] == unique
    assert found["token_prefix_share_ratio"] == pytest.approx(share, abs=0.003)


def test_memory_skew_opens_sessions_presses_on_two_anchors_and_comes_back_word_for_word():
    work = workload("memory-skew", seed=0, chars=117)
    opened, pressed, again = (phase.prompts for phase in work.phases)
    assert (len(opened), len(pressed), len(again)) == (6, 30, 36)
    assert {prompt.text for prompt in again} == {prompt.text for prompt in opened}
    assert sum(prompt.group < 2 for prompt in pressed) == 24
    assert len({prompt.text for prompt in pressed}) == 30
    for prompt in pressed:
        session = next(p for p in opened if p.group == prompt.group)
        assert prompt.text[: 24 * 117] == session.text[: 24 * 117]
    found = profile_of(work)
    assert found["total_requests"] == 72
    assert found["request_prefix_share_rate"] == pytest.approx(0.917, abs=0.001)
    assert found["token_prefix_share_ratio"] == pytest.approx(0.723, abs=0.01)


def test_texts_have_the_lengths_that_lengths_in_tokens_rest_on():
    assert len(PARAGRAPH) == len(OTHER) == 117
    assert len(set(QUESTIONS)) == 16
    assert {len(question) for question in QUESTIONS} == {17}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_order_and_another_seed_another(name):
    first = workload(name, seed=1, chars=23, requests=48)
    assert first == workload(name, seed=1, chars=23, requests=48)
    other = workload(name, seed=2, chars=23, requests=48)
    assert first.prompts != other.prompts
    assert sorted(p.text for p in first.prompts) == sorted(p.text for p in other.prompts)
    assert len(first.prompts) == 48


def test_every_mode_sets_constants_that_exist():
    for mode in MODES.values():
        assert read_constants(mode.constants)
    assert len({str(mode.constants) + str(mode.many) for mode in MODES.values()}) == 5
