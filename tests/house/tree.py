"""The checkout as house tests see it."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "lmpoold" / "store" / "lua"


@cache
def source_files() -> tuple[Path, ...]:
    """Every text that is tracked, or would be: ignored files are not the project's."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    found = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted(path for path in found if path.is_file() and path.suffix != ".png"))


def text_of(path: Path) -> str:
    """A file's text; bytes that are none become U+FFFD."""
    return path.read_text(encoding="utf-8", errors="replace")
