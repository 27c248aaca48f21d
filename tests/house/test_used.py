"""Nothing is carried along: every name is used by somebody, every package is imported."""

import ast
import re
import tomllib
from collections import Counter

import pytest

from tests.house.tree import ROOT, text_of

PACKAGES = ("lmpoold", "workers", "ctl")
CALLED_BY_OTHERS = {
    "capture_signals": "uvicorn",
    "connection_lost": "asyncio",
    "data_received": "asyncio",
    "parse": "jinja2",
}
"""Names that a library calls and no code of ours."""
IMPORTED_BY_OTHERS = {
    "accelerate": "transformers, to load weights piece by piece",
    "gguf": "transformers, to read such a file",
    "hiredis": "redis, to read replies",
    "httptools": "uvicorn, to read HTTP",
}
MODULES = {"huggingface-hub": "huggingface_hub", "nvidia-ml-py": "pynvml"}
"""Packages whose module is called otherwise."""
NEEDED = ("embedded", "gateway", "worker")
"""Extras that the product itself imports; the others are for measuring and testing."""


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def defined(text: str) -> list[str]:
    """Names of functions, methods, classes and constants; those a decorator registers left out."""
    tree, names = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            registered = any("command(" in ast.unparse(one) for one in node.decorator_list)
            if not registered and not node.name.startswith("__"):
                names.append(node.name)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if name != "__all__"]


def words(text: str) -> Counter[str]:
    """How often each word stands in code and strings; comments and docstrings do not count."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            bare = [one for one in body if isinstance(one, ast.Expr)]
            said = [one for one in bare if isinstance(one.value, ast.Constant)]
            node.body = [one for one in body if one not in said] or [ast.Pass()]
    return Counter(re.findall(r"\w+", ast.unparse(tree)))


def unused(texts: list[str], users: list[str]) -> list[str]:
    """Names defined in `texts` as often as they stand in all of `texts` and `users`."""
    stands = sum(map(words, [*texts, *users]), Counter())
    made = Counter(name for text in texts for name in defined(text))
    return sorted(name for name, times in made.items() if stands[name] <= times)


@pytest.mark.better(21)
def test_every_name_of_the_packages_is_used_by_them_or_by_what_measures_them():
    texts = [text_of(path) for path in sources(*PACKAGES)]
    users = [text_of(path) for path in sources("benchmarks")]
    assert set(unused(texts, users)) - CALLED_BY_OTHERS.keys() == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def lonely():\n    'lonely'\n", ["lonely"]),
        ("def met():\n    pass\nmet()\n", []),
        ("LEFT = 1\n# LEFT\n", ["LEFT"]),
        ("class A:\n    def one(self):\n        pass\nA()\n", ["one"]),
        ("@group.command('x')\ndef x_command():\n    pass\n", []),
    ],
)
def test_the_search_for_unused_names_finds_them(text, found):
    assert unused([text], []) == found


@pytest.mark.better(21)
def test_every_package_that_is_asked_for_is_imported():
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    asked = [*project["dependencies"]]
    for extra in NEEDED:
        asked += project["optional-dependencies"][extra]
    names = {re.split(r"[^\w-]", one)[0] for one in asked} - IMPORTED_BY_OTHERS.keys()
    imported = set()
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
    assert modules - imported == set()
