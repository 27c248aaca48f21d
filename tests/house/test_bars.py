"""tests/README.md maps rows of faults to tests: both ways, and the tests are there."""

import ast
import re
from collections import defaultdict

from tests.house.tree import ROOT, text_of

README = text_of(ROOT / "tests" / "README.md")
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
LATER = "not yet: "


def rows() -> dict[int, str]:
    """Row number -> what the table names for it."""
    return {int(number): where.strip() for number, _, where in ROW.findall(README)}


def marked() -> dict[int, set[str]]:
    """Row number -> tests that are marked with it, as `folder/file::test`."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bar":
                    where = path.relative_to(ROOT / "tests")
                    for row in mark.args:
                        found[ast.literal_eval(row)].add(f"{where}::{node.name}")
    return found


def test_the_table_names_the_tests_that_are_marked_with_its_rows_and_no_others():
    named = {
        row: set(re.findall(r"`([\w/]+\.py::test_\w+)`", where))
        for row, where in rows().items()
        if not where.startswith(LATER)
    }
    assert named == dict(marked())


def test_every_row_has_a_test_or_names_the_part_it_waits_for():
    assert len(rows()) > 35, "the table was not found"
    bare = [row for row, where in rows().items() if "::" not in where]
    assert all(re.fullmatch(rf"{LATER}\w.+", rows()[row]) for row in bare), bare
