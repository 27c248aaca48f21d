"""The Lua parts as their headers describe them."""

import re
from functools import cache

import pytest
from lupa.lua51 import LuaRuntime

from lmpoold.store.library import FUNCTIONS, PARTS, source
from lmpoold.store.refusals import ERRORS
from tests.house.tree import LUA, text_of

HEADER = re.compile(r"\A--\[\[ ([a-z_, ]+): (.+?)\n\]\]", re.DOTALL)
FUNCTION = re.compile(r"^local function (\w+)\(.*?(?=^local function |^on\(|\Z)", re.M | re.DOTALL)
REGISTERED = re.compile(r"^on\('(\w+)', (\w+)(?:, \{'([a-z-]+)'\})?\)", re.MULTILINE)
THROWN = re.compile(r"\berr\('([A-Z_]+)'")
LISTED = re.compile(r"^(?:Errors|      ) {3}([A-Z_]{4,}) ", re.MULTILINE)


@cache
def part(name: str) -> str:
    return text_of(LUA / f"{name}.lua")


def code_of(name: str) -> str:
    """A part without its comments."""
    return re.sub(r"--(?!\[\[).*", "", HEADER.sub("", part(name)))


def header_of(name: str) -> tuple[list[str], str]:
    """The names that a header begins with, and the header."""
    found = HEADER.match(part(name))
    assert found, f"{name}.lua does not begin with a header comment"
    return [title.strip() for title in found[1].split(",")], found[0]


def listed_errors(name: str) -> set[str]:
    header = header_of(name)[1]
    section = re.search(r"^Errors .*?(?=^\n|^[A-Z][a-z]+ )", header, re.M | re.DOTALL)
    return set(LISTED.findall(section[0])) if section else set()


@cache
def bodies() -> dict[str, str]:
    """Every local function of the library, by name."""
    found = {}
    for name in PARTS:
        for body in FUNCTION.finditer(code_of(name)):
            found[body[1]] = body[0]
    return found


def registered() -> dict[str, tuple[str, bool]]:
    """Function name -> (the local that does it, whether it only reads)."""
    return {
        name: (local, flag == "no-writes")
        for part_name in PARTS
        for name, local, flag in REGISTERED.findall(part(part_name))
    }


def errors_of(function: str) -> set[str]:
    """Every word a function can return, by itself or through those it calls."""
    todo, seen, words = [registered()[function][0]], set(), set()
    while todo:
        body = bodies()[todo.pop()]
        words |= set(THROWN.findall(body))
        called = set(re.findall(r"\b(\w+)\(", body)) & set(bodies()) - seen
        seen |= called
        todo += called
    return words


def test_the_parts_in_load_order_are_the_files_of_the_folder():
    assert sorted(PARTS) == sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.mark.parametrize("name", PARTS)
def test_each_header_names_its_key_and_what_it_holds(name):
    _, header = header_of(name)
    assert re.search(r"^KEYS\[1\] ", header, re.MULTILINE)
    assert re.search(r"^Holds {4}\S", header, re.MULTILINE)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_uses_no_other_declared_key(name):
    assert not re.search(r"\bKEYS\b", code_of(name))
    assert re.findall(r"\bkeys\[(\d+)\]", code_of(name)) == (["1"] if name == "base" else [])


@pytest.mark.parametrize("name", [name for name in PARTS if name != "base"])
def test_a_header_lists_the_errors_of_its_functions_and_no_others(name):
    titles, _ = header_of(name)
    words = set().union(*(errors_of(title) for title in titles if title in FUNCTIONS))
    assert listed_errors(name) == words


def test_each_function_is_described_by_one_header():
    titles = [title for name in PARTS for title in header_of(name)[0] if title in FUNCTIONS]
    assert sorted(titles) == sorted(FUNCTIONS)


def test_the_words_the_functions_return_are_the_words_the_store_translates():
    thrown = {word for name in PARTS for word in THROWN.findall(code_of(name))}
    assert thrown == set(ERRORS)


def test_the_registered_functions_are_those_the_store_knows_read_only_ones_too():
    assert {name: reads for name, (_, reads) in registered().items()} == FUNCTIONS


@pytest.mark.parametrize("name", PARTS)
def test_no_part_uses_what_only_some_servers_have(name):
    assert re.findall(r"\b(?:cmsgpack|bit|struct)\s*\.|redis\.sha1hex", code_of(name)) == []


@pytest.mark.bar(13)
@pytest.mark.parametrize("name", PARTS)
def test_no_part_walks_the_keyspace_or_flushes_it(name):
    commands = set(re.findall(r"call(?:\(|, )'([A-Z]+)'", code_of(name)))
    assert commands & {"KEYS", "SCAN", "HSCAN", "ZSCAN", "FLUSHALL", "FLUSHDB", "EVAL"} == set()


def test_the_search_for_commands_finds_them():
    assert {"XACK", "XADD", "HSET"} <= set(
        re.findall(r"call\('([A-Z]+)'", code_of("dispatch") + code_of("gate"))
    )


def test_the_library_compiles_as_lua_5_1():
    shebang, _, body = source().partition("\n")
    assert shebang == "#!lua name=lmpool"
    assert LuaRuntime().compile(body) is not None
