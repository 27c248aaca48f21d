"""lmpoolctl against a real server: exit codes, what goes where, JSON, and a word on the cure."""

import asyncio
import json
import re
import signal
import subprocess

import pytest

from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import Counts, PageEntry
from lmpoold.store.scripts import PoolStore
from tests.e2e.ctl_program import COMMAND, ROOT, Running, environ, lmpoolctl, until

COMMANDS = [
    "up",
    "demo",
    "submit",
    "status",
    "top",
    "ranks",
    "pages",
    "plans",
    "explain",
    "cancel",
    "drain",
    "config",
    "topology",
    "acl",
    "calibrate",
    "pulse",
    "redis",
]
NAME = PrefixHash("0123456789abcdef" * 2)
PARENT = PrefixHash("f" * 32)
IDENTITY = PoolIdentity(
    protocol="1",
    model="test",
    fingerprint="f",
    dtype="float32",
    block_size=16,
    kv_block_bytes=1024,
    domain="d" * 32,
    max_model_len=64,
)


@pytest.fixture
async def store(redis, keys):
    """A pool that an lmpoold has described, without any rank."""
    store = PoolStore(redis, keys)
    await store.load_library()
    await store.configure(IDENTITY, PoolConstants())
    return store


@pytest.fixture
async def ranked(store):
    """The same with rank 0 up, which holds one block and has nothing to do."""
    facts = {"device": "cpu", "host": "laptop", "pid": "4242"}
    epoch = await store.rank_up(0, held="", ttl_ms=60_000, blocks=32, identity={}, facts=facts)
    await store.delta(
        0, epoch, 0, 1, Counts(31, 1, 0, 0, 0), puts={NAME: PageEntry(17, 3, 0, PARENT)}
    )
    return store


async def in_a_thread(*words, **options):
    return await asyncio.to_thread(lmpoolctl, *words, **options)


@pytest.fixture
def ctl(server_url):
    """Run a command against the session's server."""

    async def run(*words, **options):
        return await in_a_thread(*words, LMPOOL_REDIS_URL=server_url, **options)

    return run


def test_the_version_is_the_distribution_s():
    done = lmpoolctl("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"lmpoolctl, version \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(command):
    done = lmpoolctl(command, "--help")
    assert done.returncode == 0
    example = done.stdout.partition("Example:")[2]
    assert f"lmpoolctl {command}" in example


def test_the_front_help_names_every_command():
    listed = lmpoolctl("--help").stdout.partition("Commands:")[2]
    assert sorted(re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["ranks"],
        ["pages", "0"],
        ["explain", "x"],
        ["cancel", "x"],
        ["drain", "0"],
        ["config get"],
        ["config set", "w_hop=1"],
        ["submit", "hi"],
        ["redis", "PING"],
        ["calibrate"],
    ],
)
def test_a_server_that_does_not_answer_is_exit_3_and_one_line_with_the_cure(words, tmp_path):
    gone = f"unix://{tmp_path}/none.sock"
    done = lmpoolctl(*words[0].split(), "--redis-url", gone, *words[1:])
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "lmpoolctl up" in done.stderr
    assert "--redis-url" in done.stderr


def test_without_a_pool_in_the_state_directory_the_cure_is_to_run_up(tmp_path):
    done = lmpoolctl("status", "--state-dir", tmp_path)
    assert done.returncode == 3
    assert "run `lmpoolctl up`" in done.stderr
    assert str(tmp_path) in done.stderr


def test_a_url_nobody_can_read_and_a_pool_name_nobody_can_use_are_exit_2(server_url):
    assert lmpoolctl("status", "--redis-url", "http://x").returncode == 2
    done = lmpoolctl("status", "--redis-url", server_url, "--pool", "a b")
    assert done.returncode == 2
    assert "pool name" in done.stderr


async def test_a_password_is_not_repeated_in_an_error():
    done = await in_a_thread("status", "--redis-url", "redis://:s3cret@127.0.0.1:1/0")
    assert done.returncode == 3
    assert "s3cret" not in done.stderr


async def test_redis_passes_a_command_through_and_prints_plain_text_in_a_pipe(ctl, ranked):
    assert (await ctl("redis", "PING")).stdout == "PONG\n"
    assert (await ctl("redis", "SET", "k", "-v", "--x")).returncode == 1
    assert (await ctl("redis", "SET", "k", "-v")).stdout == "OK\n"
    assert (await ctl("redis", "STRLEN", "k")).stdout == "2\n"
    cfg = (await ctl("redis", "HGETALL", ranked.keys.cfg)).stdout.splitlines()
    assert dict(zip(cfg[::2], cfg[1::2], strict=True))["model"] == "test"


async def test_redis_reaches_the_page_function_as_the_documents_show(ctl, ranked):
    done = await ctl("redis", "FCALL_RO", "page", "1", ranked.keys.load, NAME)
    assert done.stdout == f"rank=0 block=17 gen=3 depth=0 parent={PARENT} ready\n"


async def test_an_error_of_the_server_is_exit_1_on_standard_error(ctl, store):
    done = await ctl("redis", "NOSUCH", "command")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("(error) ")


async def test_status_is_exit_4_until_a_rank_is_up(ctl, store):
    done = await ctl("status", "--json")
    assert done.returncode == 4
    found = json.loads(done.stdout)
    assert found["ranks"] == []
    assert found["cfg"]["block_size"] == "16"
    assert found["totals"]["hit_rate"] is None


async def test_status_of_a_server_without_a_pool_says_that_nobody_described_it(ctl, redis):
    done = await ctl("status")
    assert done.returncode == 4
    assert "no lmpoold" in done.stdout


async def test_status_counts_what_waits_and_what_is_dead(ctl, ranked):
    await ranked.redis.xadd(ranked.keys.ingress, {"prompt": "hi"})
    await ranked.redis.zadd(ranked.keys.parked, {"a": 1, "b": 2})
    await ranked.redis.xadd(ranked.keys.dead, {"reason": "bad"})
    await ranked.redis.set(ranked.keys.lead, "laptop-1")
    done = await ctl("status", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    waiting = [found[name] for name in ("ingress", "parked", "dead", "leader", "up")]
    assert waiting == [1, 2, 1, "laptop-1", 1]
    (row,) = found["ranks"]
    assert (row["blocks"], row["used"], row["free"], row["reclaimable"]) == (32, 0, 31, 1)


async def test_status_and_ranks_fit_80_columns_in_a_pipe_too(ctl, ranked):
    for command in ("status", "ranks"):
        done = await ctl(command, COLUMNS="80")
        assert done.returncode == 0
        rows = [line for line in done.stdout.splitlines() if not line.startswith("server")]
        assert max(map(len, rows)) <= 80


async def test_ranks_are_json_objects_with_what_status_shows(ctl, ranked):
    (row,) = json.loads((await ctl("ranks", "--json")).stdout)
    assert (row["rank"], row["state"], row["device"], row["pid"]) == (0, "up", "cpu", "4242")
    assert row["hit_rate"] is None


async def test_status_watches_until_it_is_interrupted(server_url, ranked, tmp_path):
    watching = Running(tmp_path, "status", "--watch", "--json", LMPOOL_REDIS_URL=server_url)
    try:
        await asyncio.to_thread(until, lambda: watching.text.count("\n") >= 2, "two lines")
        assert await asyncio.to_thread(watching.ends, signal.SIGINT) == 130
    finally:
        await asyncio.to_thread(watching.end_for_sure)
    assert all(json.loads(line)["up"] == 1 for line in watching.text.splitlines() if line)


async def test_pages_lists_a_rank_s_blocks_and_who_holds_one(ctl, ranked):
    (page,) = json.loads((await ctl("pages", 0, "--json")).stdout)
    expected = {"block": 17, "generation": 3, "depth": 0, "parent": PARENT}
    assert page == {"hash": NAME, **expected}
    (holder,) = json.loads((await ctl("pages", "--hash", NAME, "--json")).stdout)
    assert holder == {"rank": 0, **expected}


async def test_pages_says_how_many_it_left_out(ctl, ranked):
    many = {f"{at:032x}": f"{at}:1:0:{PARENT}" for at in range(30)}
    await ranked.redis.hset(ranked.keys.pages(0), mapping=many)
    done = await ctl("pages", 0, "--limit", 5)
    assert len(done.stdout.splitlines()) == 6
    assert "5 of 31" in done.stderr


async def test_pages_of_a_rank_that_never_joined_is_an_error_and_of_no_holder_is_not(ctl, ranked):
    assert (await ctl("pages", 9)).returncode == 1
    done = await ctl("pages", "--hash", "e" * 32)
    assert done.returncode == 0
    assert "no rank holds" in done.stderr


@pytest.mark.parametrize("words", [[], ["0", "--hash", NAME], ["--hash", "xyz"]])
async def test_pages_refuses_to_guess(ctl, words):
    assert (await ctl("pages", *words)).returncode == 2


async def test_a_request_nobody_knows_is_exit_1_for_explain_and_cancel(ctl, store):
    for command in ("explain", "cancel"):
        done = await ctl(command, "nobody")
        assert done.returncode == 1
        assert "nobody" in done.stderr


async def test_a_waiting_request_is_cancelled_and_then_is_not_any_more(ctl, store):
    await store.submit("r1", "r1", {"id": "r1", "client": "r1", "prompt": "hi"})
    first = await ctl("cancel", "r1")
    assert (first.returncode, first.stdout) == (0, "r1: cancelled (queued)\n")
    assert await store.redis.hget(store.keys.request("r1"), "cancel") == b"1"


async def test_draining_an_idle_rank_ends_at_once_and_can_be_undone(ctl, ranked):
    done = await ctl("drain", 0, "--wait")
    assert (done.returncode, done.stdout) == (0, "rank 0 is drained\n")
    assert [row.state for row in await ranked.ranks()] == ["drain"]
    assert (await ctl("drain", 0, "--undo")).returncode == 0
    assert [row.state for row in await ranked.ranks()] == ["up"]


async def test_a_rank_that_is_not_there_cannot_be_drained(ctl, ranked):
    done = await ctl("drain", 7)
    assert done.returncode == 1
    assert "rank 7" in done.stderr


async def test_a_prompt_that_is_not_utf8_is_refused_before_anything_is_sent(ctl, ranked):
    done = await ctl("submit", "-", stdin=b"caf\xe9")
    assert done.returncode == 2
    assert "not UTF-8 (byte 3)" in done.stderr
    assert await ranked.redis.xlen(ranked.keys.ingress) == 0


@pytest.mark.parametrize("stdin", [b"", b"\n"])
async def test_an_empty_standard_input_is_refused(ctl, ranked, stdin):
    done = await ctl("submit", stdin=stdin)
    assert done.returncode == 2
    assert "empty" in done.stderr


async def test_a_prompt_from_two_places_is_refused(ctl, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello", encoding="utf-8")
    assert (await ctl("submit", "hi", "--file", file)).returncode == 2


async def test_a_field_the_pool_would_refuse_is_exit_1_and_names_the_field(ctl, ranked):
    done = await ctl("submit", "hi", "--temperature", "nan")
    assert done.returncode == 1
    assert "`temperature`" in done.stderr
    assert await ranked.redis.xlen(ranked.keys.ingress) == 0


async def test_submitting_to_a_server_without_a_pool_says_what_is_missing(ctl, redis):
    done = await ctl("submit", "hi")
    assert done.returncode == 2
    assert "lmpoold" in done.stderr


async def test_an_id_that_is_known_already_is_refused_instead_of_waited_for(ctl, ranked):
    await ranked.submit("r1", "r1", {"id": "r1", "client": "r1", "prompt": "hi"})
    done = await ctl("submit", "hi", "--id", "r1")
    assert done.returncode == 1
    assert "r1" in done.stderr
    assert await ranked.redis.xlen(ranked.keys.ingress) == 1


async def test_ctrl_c_cancels_a_request_that_still_waits(server_url, store, tmp_path):
    asking = Running(tmp_path, "submit", "hi", "--id", "r1", LMPOOL_REDIS_URL=server_url)
    try:
        await asyncio.to_thread(asking.says, "no rank is up")
        assert await asyncio.to_thread(asking.ends, signal.SIGINT) == 130
    finally:
        await asyncio.to_thread(asking.end_for_sure)
    assert await store.redis.hget(store.keys.request("r1"), "cancel") == b"1"


async def test_a_reader_that_leaves_early_is_no_traceback(server_url, ranked):
    line = f"{COMMAND[0]} -m ctl redis INFO | true"
    done = await asyncio.to_thread(
        subprocess.run,
        ["/bin/sh", "-c", line],
        capture_output=True,
        cwd=ROOT,
        env=environ(LMPOOL_REDIS_URL=server_url),
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


async def test_config_shows_every_constant_and_changes_some(ctl, store):
    done = await ctl("config", "get", "--json")
    assert json.loads(done.stdout) == PoolConstants().to_fields()
    done = await ctl("config", "set", "w_hop=1", "pairs=0-1,2-3")
    assert (done.returncode, done.stdout) == (0, "w_hop=1\npairs=0-1,2-3\n")
    done = await ctl("config", "set", "max_parked", "9")
    assert (done.returncode, done.stdout) == (0, "max_parked=9\n")
    cfg = await store.cfg()
    assert (cfg["w_hop"], cfg["pairs"], cfg["max_parked"]) == ("1", "0-1,2-3", "9")
    shown = await ctl("config", "get", "w_hop", "pairs")
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [
        ["w_hop", "1"],
        ["pairs", "0-1,2-3"],
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "w_hopp=1"), "there are background, bypass_slack, "),
        (("set", "block_size=32"), "no constant 'block_size'"),
        (("set", "w_hop=1", "max_parked=0"), "max_parked must be from 1"),
        (("set", "w_hop=nan"), "w_hop must be from 0"),
        (("set", "w_hop"), "as NAME=VALUE"),
        (("get", "nothing"), "no constant 'nothing'"),
    ],
)
async def test_config_refuses_what_cannot_be_and_changes_nothing(ctl, store, words, why):
    before = await store.cfg()
    done = await ctl("config", *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert await store.cfg() == before


async def test_config_of_a_pool_nobody_described_says_who_to_start(ctl, redis):
    done = await ctl("config", "set", "w_hop=1")
    assert done.returncode == 2
    assert "start lmpoold" in done.stderr
