"""Who may import whom: the contracts hold, and each of them can break."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.house.tree import ROOT

PLANTED = {
    "lmpoold/protocol/keys.py": "import redis",
    "lmpoold/core/__init__.py": "import lmpoold.store.scripts",
    "lmpoold/store/library.py": "import lmpoold.text",
    "lmpoold/daemon/__init__.py": "import torch",
    "lmpoold/__init__.py": "import workers",
    "workers/core/__init__.py": "import workers.model",
    "workers/daemon/__init__.py": "import lmpoold.daemon",
    "ctl/__init__.py": "import workers.core",
    "ctl/printer.py": "import lmpoold.gateway.app",
    "lmpoold/gateway/__init__.py": "import lmpoold.core",
    "lmpoold/gateway/reading.py": "import asyncio",
    "lmpoold/client.py": "import starlette",
    "lmpoold/daemon/serve.py": "import lmpoold.client",
}
"""A file, and an import that some contract forbids there."""


def lint(folder) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy_of_the_tree(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("lmpoold", "workers", "ctl"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    return tmp_path


def test_the_tree_keeps_its_contracts():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", PLANTED)
def test_a_planted_import_breaks_a_contract(copy_of_the_tree, path):
    with (copy_of_the_tree / path).open("a") as module:
        module.write(f"\n{PLANTED[path]}\n")
    result = lint(copy_of_the_tree)
    assert result.returncode == 1
    assert "BROKEN" in result.stdout
