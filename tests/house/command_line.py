"""Command lines that files show to others, held against the help of our programs."""

import functools
import os
import re
import subprocess
import sys
import tomllib

from tests.house.tree import ROOT, text_of

SCRIPTS = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["scripts"]


@functools.cache
def help_of(program, *words):
    """What a program, or a command of it, prints for --help."""
    module = SCRIPTS[program].partition(":")[0].removesuffix(".__main__")
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_line(line):
    """Fail if a command line has a command, an option or an argument that its help lacks."""
    program, *words = line
    commands = []
    while words and not words[0].startswith("-"):
        if not re.search(rf"^  {words[0]}\b", help_of(program, *commands), re.MULTILINE):
            break  # an argument
        commands.append(words.pop(0))
    known = set(re.findall(r"--[a-z][a-z-]*", help_of(program, *commands)))
    assert {word for word in words if word.startswith("--")} <= known
    if words and not words[0].startswith("-"):
        assert words[0] in help_of(program, *commands)
