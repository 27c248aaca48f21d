"""`lmpoolctl up` for real: server, lmpoold and workers as children, through their deaths."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.e2e.ctl_program import Running, Up, lmpoolctl, runs, until

SHARED = "The ferry leaves Alder Quay every hour on the hour. " * 4
ALL = {"server", "lmpoold", "worker-0", "worker-1"}


@pytest.fixture(scope="module")
def scratch():
    # A short path: a unix socket's may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="lmpool-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def pool(scratch):
    """A pool of two workers that all tests of this module share."""
    up = Up(scratch, scratch / "shared", workers=2)
    try:
        yield up
    finally:
        up.end_for_sure()


@pytest.fixture
def ctl(pool):
    def run(*words, **options):
        return lmpoolctl(*words, LMPOOL_STATE=str(pool.state), **options)

    return run


@pytest.fixture
def started():
    """Processes that a test started, ended behind it."""
    left = []
    yield left
    for process in left:
        process.end_for_sure()


def test_up_runs_a_server_an_lmpoold_and_the_workers(pool, ctl):
    assert set(pool.children()) == ALL
    found = json.loads(ctl("status", "--json").stdout)
    assert found["up"] == 2
    assert found["cfg"]["model"] == "random:tiny-qwen3"
    assert found["leader"] != ""


def test_the_submit_command_that_up_prints_works(pool, ctl):
    printed = pool.says(r"lmpoolctl submit (--state-dir \S+) ")
    done = lmpoolctl("submit", *printed[1].split(), "hi", "--max-tokens", 2)
    assert done.returncode == 0


def test_the_answer_is_on_standard_output_alone_and_usage_on_standard_error(ctl):
    done = ctl("submit", "Why is the sky blue?", "--max-tokens", 4, "--ignore-eos")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert "20 prompt tokens" in done.stderr
    assert "4 output tokens" in done.stderr
    assert "rank " in done.stderr


def test_an_answer_reaches_a_terminal_that_knows_ascii_only(ctl):
    words = ("submit", "hi", "--max-tokens", 40, "--ignore-eos", "--quiet")
    full = ctl(*words).stdout
    assert not full.isascii(), "the prompt no longer tries anything"
    done = ctl(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_quiet_leaves_standard_error_empty(ctl):
    assert ctl("submit", "hi", "--max-tokens", 2, "--quiet").stderr == ""


def test_a_prompt_means_the_same_from_argument_file_pipe_and_dash(ctl, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Why, 日本?\n", encoding="utf-8")
    options = ("--max-tokens", 6, "--ignore-eos", "--quiet", "--json")
    piped = file.read_bytes()
    done = [
        ctl("submit", "Why, 日本?", *options),
        ctl("submit", "--file", file, *options),
        ctl("submit", *options, stdin=piped),
        ctl("submit", "-", *options, stdin=piped),
    ]
    last = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    assert len({(each["text"], each["usage"]["prompt_tokens"]) for each in last}) == 1


def test_json_is_a_line_a_step_and_one_on_the_whole(ctl):
    words = ("submit", "hi", "--json", "--max-tokens", 3, "--ignore-eos", "--logprobs", 2)
    *steps, whole = [json.loads(line) for line in ctl(*words).stdout.splitlines()]
    assert [step["index"] for step in steps] == [0, 1, 2]
    assert all(len(step["logprobs"]["top"]) == 2 for step in steps)
    assert "".join(step["text"] for step in steps) == whole["text"]
    assert whole["usage"]["completion_tokens"] == 3
    assert whole["finish_reason"] == "length"
    assert whole["rank"] in (0, 1)


def test_a_system_prompt_makes_it_a_conversation(ctl):
    options = ("--max-tokens", 1, "--json")
    plain, chat, system = (
        json.loads(ctl("submit", "hi", *options, *more).stdout.splitlines()[-1])
        for more in ([], ["--chat"], ["--system", "Be brief."])
    )
    lengths = [each["usage"]["prompt_tokens"] for each in (plain, chat, system)]
    assert lengths == sorted(set(lengths))


def test_what_the_pool_refuses_is_exit_1_with_its_code(ctl):
    done = ctl("submit", "x" * 5000, "--max-tokens", 4)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "context_length_exceeded" in done.stderr


def test_explain_tells_why_a_second_request_followed_the_first(ctl):
    prompt = SHARED + os.urandom(8).hex()
    salt = os.urandom(8).hex()
    options = ("--max-tokens", 2, "--quiet", "--salt", salt, "--json")
    ids = [os.urandom(8).hex() for _ in range(2)]
    ranks = []
    for request_id in ids:
        done = ctl("submit", prompt, "--id", request_id, *options)
        ranks.append(json.loads(done.stdout.splitlines()[-1])["rank"])
    first, second = (json.loads(ctl("explain", each, "--json").stdout) for each in ids)
    assert first["reason"] == "no_prefix_hit"
    assert second["reason"] == "prefix_hit"
    assert ranks[0] == ranks[1]
    hits = {each["rank"]: each["hit"] for each in second["candidates"]}
    assert set(hits) == {0, 1}
    assert hits[ranks[1]] > 0
    shown = ctl("explain", ids[1])
    assert "longest cached prefix" in shown.stdout
    assert "verdict" in shown.stdout


def test_pages_and_the_page_function_agree_on_who_holds_a_block(ctl):
    done = ctl("submit", SHARED, "--max-tokens", 2, "--json", "--quiet")
    rank = json.loads(done.stdout.splitlines()[-1])["rank"]
    page = json.loads(ctl("pages", rank, "--json").stdout)[0]
    load = "lmpool:{default}:load"
    line = ctl("redis", "FCALL_RO", "page", "1", load, page["hash"]).stdout
    assert f"rank={rank} block={page['block']} gen={page['generation']}" in line
    holders = json.loads(ctl("pages", "--hash", page["hash"], "--json").stdout)
    assert rank in [holder["rank"] for holder in holders]


def test_ctrl_c_ends_a_running_request_in_the_pool(pool, ctl, started, tmp_path):
    request_id = os.urandom(8).hex()
    words = ("hi", "--id", request_id, "--max-tokens", 2000, "--ignore-eos", "--json")
    asking = Running(tmp_path, "submit", *words, LMPOOL_STATE=str(pool.state))
    started.append(asking)
    asking.says('"index":3,')
    assert asking.ends(signal.SIGINT) == 130
    until(
        lambda: json.loads(ctl("explain", request_id, "--json").stdout)["state"] == "cancelled",
        "the request is cancelled",
    )


def test_a_second_up_in_the_same_state_directory_is_refused(pool, ctl):
    done = lmpoolctl("up", "--model", "random:tiny-qwen3", "--state-dir", pool.state)
    assert done.returncode == 2
    assert f"pid {pool.process.pid}" in done.stderr
    assert "--state-dir" in done.stderr
    assert ctl("status").returncode == 0


@pytest.mark.parametrize("name", ["worker-1", "lmpoold", "server"])
def test_a_child_that_is_killed_comes_back_and_answers(pool, ctl, name):
    before = pool.children()
    os.kill(before[name], signal.SIGKILL)
    until(lambda: pool.children().get(name, before[name]) != before[name], f"{name} is back")

    def all_up():
        done = ctl("status", "--json")
        return done.stdout and json.loads(done.stdout)["up"] == 2

    until(all_up, "both ranks are up again")
    assert ctl("submit", "hi", "--max-tokens", 2).returncode == 0
    pool.says(rf"{name}\S* ended \(SIGKILL\): starting it again")
    if name == "worker-1":
        pool.says("worker-1 is up again")


def test_ctrl_c_stops_every_child_and_a_later_up_finds_the_state(scratch, started):
    state = scratch / "kept"
    up = Up(scratch, state)
    started.append(up)
    children = up.children()
    assert set(children) == ALL - {"worker-1"}
    submit = ("submit", "hi", "--max-tokens", 2, "--id", "kept", "--state-dir", state)
    assert lmpoolctl(*submit).returncode == 0
    assert up.ends(signal.SIGINT) == 0
    assert [name for name, pid in children.items() if runs(pid)] == []
    assert up.text.rstrip().endswith("stopped")
    again = Up(scratch, state)
    started.append(again)
    found = json.loads(lmpoolctl("explain", "kept", "--json", "--state-dir", state).stdout)
    assert found["state"] == "done"
    assert again.ends(signal.SIGTERM) == 0


def test_what_a_killed_up_left_behind_is_ended_by_the_next(scratch, started):
    state = scratch / "killed"
    up = Up(scratch, state)
    started.append(up)
    left = up.children()
    up.ends(signal.SIGKILL)
    assert all(runs(pid) for pid in left.values())
    again = Up(scratch, state)
    started.append(again)
    assert "left over" in again.text
    assert [name for name, pid in left.items() if runs(pid)] == []
    done = lmpoolctl("submit", "hi", "--max-tokens", 2, "--state-dir", state)
    assert done.returncode == 0
    assert again.ends(signal.SIGINT) == 0


def test_a_wrong_setting_ends_everything_with_exit_2_and_the_child_s_last_words(scratch):
    state = scratch / "wrong"
    done = lmpoolctl("up", "--model", "random:nothing", "--state-dir", state, within_s=60)
    assert done.returncode == 2
    assert "no shape is called 'nothing'" in done.stdout
    assert not (state / "children.json").exists()
    assert lmpoolctl("status", "--state-dir", state).returncode == 3


def test_up_on_a_server_that_does_not_answer_is_exit_3(scratch):
    gone = f"unix://{scratch}/none.sock"
    words = ("up", "--model", "random:tiny-qwen3", "--redis-url", gone)
    done = lmpoolctl(*words, "--state-dir", scratch / "far", within_s=60)
    assert done.returncode == 3
    assert "no server answers" in done.stderr


def test_a_socket_path_that_is_too_long_is_refused_with_the_cure(scratch):
    deep = scratch / ("d" * 100)
    done = lmpoolctl("up", "--model", "random:tiny-qwen3", "--state-dir", deep)
    assert done.returncode == 2
    assert "shorter --state-dir" in done.stderr
