"""Small rooms: a file that grows past the wall is two ideas."""

import pytest

from tests.house.tree import ROOT, source_files, text_of

WALLS = {".py": 400, ".lua": 120}


@pytest.mark.parametrize("suffix", WALLS)
def test_no_module_is_longer_than_its_wall(suffix):
    lengths = {
        str(path.relative_to(ROOT)): len(text_of(path).splitlines())
        for path in source_files()
        if path.suffix == suffix
    }
    assert lengths, "no files of this kind were found: the search is broken"
    too_long = {name: lines for name, lines in lengths.items() if lines > WALLS[suffix]}
    assert too_long == {}
