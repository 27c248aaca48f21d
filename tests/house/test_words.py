"""What no file of the project may say, and what the front page must."""

import re

import pytest

from tests.house.tree import ROOT, source_files, text_of

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root)(?=[/\s\"'`),;:]|$)")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|raise NotImplementedError)\b")
HERE = ROOT / "tests" / "house" / "test_words.py"


def _lines_with(pattern):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in source_files()
        if path != HERE
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine():
    assert _lines_with(MACHINE_PATH) == []


def test_no_file_is_left_unfinished():
    assert _lines_with(UNFINISHED) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('open("/work/main")', True),
        ("cd /root", True),
        ("see workers/core and path/work/x", False),
        ("/workers/core", False),
    ],
)
def test_the_path_pattern_tells_machine_paths_from_folders(line, found):
    assert bool(MACHINE_PATH.search(line)) is found


def test_the_front_page_names_the_two_commands_to_start_with():
    page = text_of(ROOT / "README.md")
    assert "make demo" in page
    assert "make test" in page


def test_every_target_the_front_page_names_is_in_the_makefile():
    named = set(re.findall(r"\bmake ([a-z]+)\b", text_of(ROOT / "README.md")))
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert named <= targets
