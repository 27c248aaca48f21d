"""What the demo adds up, and what it says to whom."""

import pytest

from ctl.conversation import QUESTIONS, QUESTIONS_A_ROUND, SYSTEM, messages, questions_of
from ctl.progress import read_boot
from ctl.render import plain
from ctl.results import LEAST_SAVED, Asked, by_rank, saved_share, sum_up
from ctl.target import shown_url
from lmpoold.protocol.errors import DecodeError

SHARED = 100


def asked(number, saved, *, rank=0, first_token_s=0.5):
    return Asked(
        id=f"r{number}-{saved}",
        round=number,
        question="?",
        answer="!",
        rank=rank,
        reason="prefix_hit",
        prompt_tokens=120,
        cached_tokens=saved,
        saved_tokens=saved,
        output_tokens=10,
        first_token_s=first_token_s,
    )


def test_the_first_round_does_not_count_towards_the_share_that_must_be_saved():
    summary = sum_up([asked(1, 0), asked(2, 60), asked(3, 40)], shared_tokens=SHARED, failed=0)
    assert summary.later_share == LEAST_SAVED
    assert summary.well


@pytest.mark.parametrize(
    ("rounds", "failed"),
    [([asked(1, 100), asked(2, 49)], 0), ([asked(1, 0), asked(2, 100)], 1), ([asked(1, 99)], 0)],
)
def test_a_demo_is_not_well_if_too_little_was_saved_or_an_answer_failed(rounds, failed):
    assert not sum_up(rounds, shared_tokens=SHARED, failed=failed).well


def test_a_demo_without_answers_sums_up_to_nothing_and_is_not_well():
    summary = sum_up([], shared_tokens=0, failed=1)
    assert (summary.questions, summary.later_share, summary.well) == (0, 0.0, False)


def test_the_share_is_taken_over_all_questions():
    assert saved_share([asked(2, 100), asked(2, 0)], SHARED) == 0.5


def test_times_to_the_first_token_are_means_by_round():
    rounds = [asked(1, 0, first_token_s=2.0), asked(1, 0, first_token_s=1.0)]
    summary = sum_up([*rounds, asked(2, 90, first_token_s=0.2)], shared_tokens=SHARED, failed=0)
    assert (summary.first_round_s, summary.later_s) == (1.5, 0.2)


def test_each_rank_that_answered_has_a_row():
    lines = plain(by_rank([asked(1, 0), asked(2, 60, rank=3), asked(2, 60)])).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["0", "2"], ["3", "1"]]


def test_the_rounds_ask_different_questions_until_all_were_asked():
    rounds = len(QUESTIONS) // QUESTIONS_A_ROUND
    seen = [question for number in range(rounds) for question in questions_of(number)]
    assert sorted(seen) == sorted(QUESTIONS)
    assert questions_of(rounds) == questions_of(0)


def test_every_question_follows_the_same_system_prompt():
    first, second = (messages(question) for question in QUESTIONS[:2])
    assert first[0] == second[0] == {"role": "system", "content": SYSTEM}
    assert first[1] != second[1]


def test_a_boot_state_is_a_stage_and_two_counts():
    assert read_boot("reading weights 3 30") == ("reading weights", 3, 30)
    for text in ("", "load", "load 3", "load x 30"):
        with pytest.raises(DecodeError):
            read_boot(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("rediss://me:s3cret@db:6380/0", "rediss://me:***@db:6380/0"),
        ("redis://:s3@cret@db:6380/0", "redis://:***@db:6380/0"),
        ("unix:///tmp/s.sock", "unix:///tmp/s.sock"),
    ],
)
def test_a_password_in_a_url_is_never_shown(url, shown):
    assert shown_url(url) == shown
