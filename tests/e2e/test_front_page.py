"""The front page, from its top to the end of "Move": what a newcomer copies runs as it stands.

Only names of places are replaced: the model by one that needs no files, URLs and the port by those
of the pool that the test started, `redis-cli` by what the page says takes its place.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.ctl_program import MODEL, Up, environ
from tests.house.tree import ROOT, text_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
FRONT = text_of(ROOT / "README.md")
PATH = FRONT[FRONT.index("\n## Start") : FRONT.index("\n## Deploy")]
SHELL = f"""
set -e -o pipefail
lmpoolctl() {{ {sys.executable} -m ctl "$@"; }}
redis-cli() {{ lmpoolctl redis "$@"; }}
git() {{ echo "- the sea is grey"; echo "+ the sea is blue"; }}
"""
NOT_HERE = ("make ", ". .venv", "lmpoolctl up ", "lmpool-gateway ")
"""Lines that build or start what the test has started already."""


@pytest.fixture(scope="module")
def pool():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="lmpool-", dir="/tmp") as folder:
        scratch = Path(folder)
        up = Up(scratch, scratch / "s", "--gateway", port, workers=2)
        try:
            yield scratch / "s", port
        finally:
            up.end_for_sure()


def placed(text, pool):
    """A text of the page with the names of this pool's places."""
    state, port = pool
    text = text.replace("localhost:8000", f"127.0.0.1:{port}")
    text = text.replace("redis://localhost:6379/0", f"unix://{state}/server/redis.sock")
    return re.sub(r"(\"?model\"?[:=] ?)\"demo\"", rf'\1"{MODEL}"', text)


def shell_scripts():
    """The indented blocks of the page that hold commands of the pool, one script each."""
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PATH, re.MULTILINE):
        lines = [line[4:].split("   #")[0].rstrip() for line in block.splitlines()]
        lines = [line for line in lines if line and not line.startswith(NOT_HERE)]
        if any(re.match(r"(lmpoolctl|id=|git|redis-cli|curl)", line) for line in lines):
            yield "\n".join(lines)


def run(argv, pool, **options):
    state, _ = pool
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environ(LMPOOL_STATE=str(state), PYTHONPATH=os.environ.get("PYTHONPATH", str(ROOT))),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{argv[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", list(shell_scripts()), ids=lambda script: script[:24])
def test_the_commands_of_the_page_run(pool, script):
    if "curl" in script and shutil.which("curl") is None:
        pytest.skip("no curl here: the page's Python asks the same")
    out = run(["bash", "-c", SHELL + placed(script, pool)], pool)
    assert out.strip()
    if "XREAD" in script:
        assert "index" in out  # the first entries: the page says to read on
    if "curl" in script:
        assert out.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("program", re.findall(r"```python\n(.*?)```", PATH, re.DOTALL))
def test_the_python_of_the_page_runs(pool, program):
    out = run([sys.executable, "-c", placed(program, pool)], pool)
    assert "prompt_tokens" in out


def test_the_five_commands_to_look_in_answer(pool):
    lines = re.findall(r"^ {4}((?:FCALL_RO|XINFO|XREVRANGE) .*?)(?: {2,}.*)?$", PATH, re.MULTILINE)
    assert len(lines) == 5
    prelude = "lmpoolctl submit --id newcomer --max-tokens 2 'The front page is read. And again.'\n"
    pages = "hash=$(lmpoolctl pages 0 --limit 1 --json; lmpoolctl pages 1 --limit 1 --json)\n"
    pages += "hash=$(echo \"$hash\" | grep -o '[0-9a-f]\\{32\\}' | head -1)\n"
    asks = [f"lmpoolctl redis {line}" for line in lines]
    asks = [ask.replace("<id>", "newcomer").replace("<hash>", '"$hash"') for ask in asks]
    out = run(["bash", "-c", SHELL + prelude + pages + "\n".join(asks)], pool)
    for said in ("state=up", "reason=", "gen=", "lag"):
        assert said in out, said


def test_the_commands_that_the_page_names_show_the_pool(pool):
    words = {"status", "ranks", "plans", "top", "topology", "config"}
    named = {word for word in words if re.search(rf"`lmpoolctl {word}\b|`{word}`", PATH)}
    assert named == words
    script = "lmpoolctl status; lmpoolctl ranks; lmpoolctl plans; lmpoolctl top --every 0.2; "
    script += "lmpoolctl config set fetch=0; lmpoolctl config set fetch=1"
    out = run(["bash", "-c", SHELL + script], pool)
    assert MODEL in out
    assert "requests/s" in out
