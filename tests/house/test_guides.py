"""The guides and the front page name commands, options, metrics and files that exist."""

import re
import tomllib
from functools import cache

import click
import pytest
from click.testing import CliRunner

from ctl.__main__ import lmpoolctl
from lmpoold.__main__ import command as lmpoold
from lmpoold.gateway.__main__ import command as gateway
from tests.house.reference import reference
from tests.house.test_dashboard import NAMES
from tests.house.tree import ROOT, text_of
from workers.__main__ import command as worker

GUIDES = ROOT / "lmpoold" / "guides"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *GUIDES.glob("*.md")])
PROGRAMS = {
    "lmpoolctl": lmpoolctl,
    "lmpoold": lmpoold,
    "lmpool-worker": worker,
    "lmpool-gateway": gateway,
}
VERSION = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["version"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def code_of(text):
    """Code spans and code lines of a page, one command line each as a reader would see it."""
    for span in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        yield from span.splitlines()
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"^ {4}(.*)", plain, re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", plain)


def command_lines(page):
    """(program, words behind it) of every command line that a page shows."""
    for code in code_of(text_of(page)):
        line = code.partition("  # ")[0]
        for program in PROGRAMS:
            found = re.match(rf"(?:\. \S+ && )?{program}(?= |$)(.*)", line.strip())
            if found:
                yield program, found[1].split(" | ")[0].split(" > ")[0].split()


def resolve(program, words):
    """The click command that a line runs, and the rest of its words."""
    command, rest = PROGRAMS[program], list(words)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    return command, rest


@cache
def options_of(command):
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@each_page
def test_every_command_line_of_a_page_names_commands_and_options_that_exist(page):
    lines = list(command_lines(page))
    if page.name in ("README.md", "operating.md"):
        assert len(lines) > 5, "the search is broken"
    for program, words in lines:
        command, rest = resolve(program, words)
        shown = f"{program} {' '.join(words)}"
        if rest and program == "lmpoolctl" and isinstance(command, click.Group):
            assert rest[0].startswith("-"), shown
        if command.name == "redis":
            continue  # its words are the server's
        given = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
        assert given <= options_of(command) | {"--help", "--version"}, shown


def _commands(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))


@pytest.mark.parametrize(
    ("program", "path"),
    [(name, path) for name, top in PROGRAMS.items() for path, _ in _commands(top)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_every_command_has_a_help_that_says_what_it_does(program, path):
    done = CliRunner().invoke(PROGRAMS[program], [*path, "--help"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage: ")
    said = done.output.partition("\n\n")[2].partition("Options:")[0]
    assert len(said.split()) > 5, done.output


def test_the_front_page_or_a_guide_names_every_command_of_lmpoolctl():
    text = "\n".join(map(text_of, PAGES))
    unnamed = [name for name in lmpoolctl.commands if not re.search(rf"`[^`]*\b{name}\b", text)]
    assert unnamed == []


@each_page
def test_every_link_of_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", text_of(file), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w-]", "", head.lower().replace(" ", "-")) for head in heads
            ]


@each_page
def test_every_metric_a_page_names_exists(page):
    named = set(re.findall(r"\blmpool_[a-z_]+\b", text_of(page)))
    assert named <= NAMES.keys()


def test_the_protocol_reference_says_what_the_code_says():
    written = text_of(GUIDES / "protocol.md")
    assert written == reference(), (
        "run python -m tests.house.reference > lmpoold/guides/protocol.md"
    )


def test_the_changes_name_this_version():
    assert re.search(rf"^## {re.escape(VERSION)}\b", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", GUIDES / "producing.md"], ids=lambda p: p.name
)
def test_the_python_on_a_page_can_be_read(page):
    found = re.findall(r"^```python.*?\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    assert found
    for program in found:
        compile(program, str(page), "exec")
