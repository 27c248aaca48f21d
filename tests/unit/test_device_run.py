"""The one call for a machine with GPUs: what it runs where, and how it judges what came of it."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.bars import BARS, Bar, judge, table
from benchmarks.device import ROUNDS, Run, Stage, chosen, main, places

ARCHIVE = Path(__file__).parents[2] / "benchmarks" / "results"
STAGES = [stage for lanes in ROUNDS for lane in lanes for stage in lane]


def named(rounds):
    return [[[stage.name for stage in lane] for lane in lanes] for lanes in rounds]


@pytest.mark.parametrize("path", sorted(ARCHIVE.rglob("*.json")), ids=lambda path: path.stem)
def test_a_bar_finds_its_figure_in_what_is_archived(path):
    bars = [bar for bar in BARS if bar.file == path.stem]
    found = [bar for bar, _ in judge(path.stem, json.loads(path.read_text(encoding="utf-8")))]
    assert found == bars


def test_the_archive_is_judged_by_most_bars():
    files = [path.stem for path in ARCHIVE.rglob("*.json")]
    assert {"step", "engine", "transfer", "gateway", "load-skew-qwen3-0.6b"} <= set(files)
    assert table(ARCHIVE).count("\n") + 1 == sum(files.count(bar.file) for bar in BARS)


def test_a_bound_holds_to_the_last_digit():
    most, least = Bar("f", "w", float, most=2), Bar("f", "w", float, least=2)
    assert most.met(2)
    assert least.met(2)
    assert not most.met(2.001)
    assert not least.met(1.999)


def test_the_table_says_what_is_met_and_what_is_not(tmp_path):
    figures = {"prefill_tok_s": {"2048": 399_999, "8192": 250_000}}
    (tmp_path / "step.json").write_text(json.dumps(figures))
    first, second = table(tmp_path).splitlines()
    assert first.endswith("NOT MET")
    assert "399,999.000" in first
    assert second.endswith("met")


def test_what_needs_more_gpus_than_there_are_is_left_out():
    assert all(stage.gpus <= 1 for lanes in chosen((), 1) for lane in lanes for stage in lane)
    assert named(chosen((), 2)) == named(ROUNDS)
    assert named(chosen(("restart", "step"), 2)) == [[["step"]], [["restart"]]]


def test_lanes_side_by_side_have_gpus_of_their_own():
    one, two, none = (Stage("s", (), gpus, 1) for gpus in (1, 2, 0))
    assert places([[one, none], [one], [none]], 2) == ["0", "1", ""]
    assert places([[two]], 2) == ["0,1"]
    assert places([[one], [one]], 1) is None


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_stage_names_a_program_that_is_there(stage):
    assert importlib.util.find_spec(stage.argv[0]) is not None


def test_a_stage_that_fails_or_hangs_leaves_its_log_and_the_next_one_runs(tmp_path, capfd):
    sleep = ("timeit", "-n1", "-r1", "import time; time.sleep(60)")
    lane = [
        Stage("broken", ("json.tool", str(tmp_path / "missing")), 0, 20),
        Stage("slow", sleep, 0, 0.5),
        Stage("good", ("json.tool", "{out}/given", "{json}"), 0, 20),
    ]
    (tmp_path / "given").write_text("[1]")
    Run(tmp_path, 60).round([lane], 0)
    said = capfd.readouterr().out
    assert "broken: FAILED" in said
    assert "No such file" in said
    assert "slow: out of time" in said
    assert "good: done" in said
    assert json.loads((tmp_path / "good.json").read_text()) == [1]


def test_nothing_starts_when_the_time_is_over(tmp_path, capfd):
    Run(tmp_path, 0).round([[Stage("late", ("this",), 0, 20)]], 0)
    assert "late: no time left" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "--out"), (("--out", "x", "--only", "stp"), "no stage stp; there are admit, ")],
)
def test_a_wrong_call_is_told_what_to_do(words, said):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert said in done.output
