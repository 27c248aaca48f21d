"""tests/README.md maps its rows to tests: both ways, and the tests are there."""

import ast
import re
from collections import defaultdict

import pytest

from tests.house.tree import ROOT, text_of

README = text_of(ROOT / "tests" / "README.md")
ROW = re.compile(r"^\| (W?)(\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
MARKS = {"bar": "", "better": "W"}
"""Mark of a test -> what numbers of its table begin with."""
LATER = "not yet: "


def rows(mark: str) -> dict[int, str]:
    """Row number -> what the table names for it."""
    found = [row for row in ROW.findall(README) if row[0] == MARKS[mark]]
    return {int(number): where.strip() for _, number, _, where in found}


def marked(mark: str) -> dict[int, set[str]]:
    """Row number -> tests that are marked with it, as `folder/file::test`."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                if (
                    isinstance(decorator, ast.Call)
                    and ast.unparse(decorator.func) == f"pytest.mark.{mark}"
                ):
                    where = path.relative_to(ROOT / "tests")
                    for row in decorator.args:
                        found[ast.literal_eval(row)].add(f"{where}::{node.name}")
    return found


@pytest.mark.parametrize("mark", MARKS)
def test_the_table_names_the_tests_that_are_marked_with_its_rows_and_no_others(mark):
    named = {
        row: set(re.findall(r"`([\w/]+\.py::test_\w+)`", where))
        for row, where in rows(mark).items()
        if not where.startswith(LATER)
    }
    assert named == dict(marked(mark))


def test_every_fault_has_a_test_or_names_the_part_it_waits_for():
    where = rows("bar")
    assert len(where) > 35, "the table was not found"
    bare = [row for row in where if "::" not in where[row]]
    assert all(re.fullmatch(rf"{LATER}\w.+", where[row]) for row in bare), bare


def test_every_note_has_a_test():
    where = rows("better")
    assert list(where) == list(range(1, 22))
    assert all("::" in tests for tests in where.values())
