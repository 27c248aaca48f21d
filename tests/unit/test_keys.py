"""Names of keys: one hash tag a pool, none twice."""

import inspect

import pytest

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.keys import DEFAULT_POOL, Keyspace


def every_key(keys: Keyspace) -> dict[str, str]:
    """Each key of the keyspace, with 7 for a rank and so on."""
    places = {"rank": 7, "epoch": "9", "version": 3, "client": "c", "request_id": "q"}
    places["plan_id"] = "p"
    found = {}
    for name, member in vars(Keyspace).items():
        if isinstance(member, property) and name != "prefix":
            found[name] = getattr(keys, name)
        elif inspect.isfunction(member) and not name.startswith("_"):
            wanted = list(inspect.signature(member).parameters)[1:]
            found[name] = member(keys, *(places[place] for place in wanted))
    return found


def test_every_key_lies_under_the_hash_tag_of_its_pool():
    for name, key in every_key(Keyspace("p1")).items():
        assert key.startswith("lmpool:{p1}:"), name
        assert key.count("{") == 1


def test_no_two_keys_are_spelled_alike():
    found = every_key(Keyspace())
    assert len(found) > 15
    assert len(set(found.values())) == len(found)


def test_two_pools_share_no_key():
    one, other = every_key(Keyspace("a")), every_key(Keyspace("b"))
    assert not set(one.values()) & set(other.values())


def test_the_prefix_is_what_the_functions_cut_load_down_to():
    keys = Keyspace()
    assert keys.pool == DEFAULT_POOL
    assert keys.load[: -len("load")] == keys.prefix


@pytest.mark.parametrize("name", ["a", "A-1.b_c", "x" * 64])
def test_a_plain_name_is_a_pool(name):
    assert Keyspace(name).pool == name


@pytest.mark.parametrize("name", ["", "a b", "{a}", "a:b", "x" * 65, "a\n", "é"])
def test_a_name_that_would_break_the_hash_tag_is_a_config_error(name):
    with pytest.raises(ConfigError, match="pool name"):
        Keyspace(name)
