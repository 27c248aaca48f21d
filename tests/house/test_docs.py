"""Documents that must keep up with the code."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields

import pytest

import lmpoold.protocol
from lmpoold.protocol import errors
from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output
from lmpoold.protocol.request import FIELDS
from lmpoold.store.library import FUNCTIONS
from tests.house.tree import LUA, ROOT, text_of

FRONT = text_of(ROOT / "README.md")
STORE = text_of(ROOT / "lmpoold" / "store" / "README.md")
MODULES = [module.name for module in pkgutil.iter_modules(lmpoold.protocol.__path__)]
PLACES = {"rank": "<k>", "client": "<client>", "request_id": "<id>", "epoch": "<epoch>"}
PLACES |= {"version": "<version>", "plan_id": "<id>"}


def _public_members(owner, module_name):
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        target = member.fget if isinstance(member, property) else member
        target = getattr(target, "__func__", target)
        if not (inspect.isfunction(target) or inspect.isclass(target)):
            continue
        if target.__module__ != module_name:
            continue
        yield f"{module_name}.{target.__qualname__}", target
        if inspect.isclass(target):
            yield from _public_members(target, module_name)


def _keys_of_the_keyspace():
    keys = Keyspace()
    for name, member in vars(Keyspace).items():
        if isinstance(member, property) and name != "prefix":
            yield getattr(keys, name).removeprefix(keys.prefix)
        elif inspect.isfunction(member) and not name.startswith("_"):
            places = list(inspect.signature(member).parameters)[1:]
            yield member(keys, *(PLACES[place] for place in places)).removeprefix(keys.prefix)


def _keys_the_functions_build():
    for path in LUA.glob("*.lua"):
        text = text_of(path)
        for what in re.findall(r"rank_key\([^,()]+(?:\[[^]]*\])?, '([a-z]+)", text):
            yield f"r:<k>:{what}"
        for what in re.findall(r"'r:' \.\. [^ ]+ \.\. ':([a-z]+)", text):
            yield f"r:<k>:{what}"
        yield from re.findall(r"P \.\. '([a-z:]+)'", text)


@pytest.mark.parametrize("module_name", MODULES)
def test_everything_public_in_the_protocol_has_a_docstring(module_name):
    module = importlib.import_module(f"lmpoold.protocol.{module_name}")
    bare = [
        name
        for name, member in _public_members(module, module.__name__)
        if not (member.__doc__ or "").strip()
        or (inspect.isclass(member) and member.__doc__.startswith(f"{member.__name__}("))
    ]
    assert bare == []


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_a_producer_may_send_is_on_the_front_page(field):
    assert f"`{field}`" in FRONT


@pytest.mark.parametrize("field", Output._fields)
def test_every_field_of_an_output_entry_is_on_the_front_page(field):
    assert f"`{field}`" in FRONT


@pytest.mark.parametrize("key", sorted(set(_keys_of_the_keyspace())))
def test_every_key_is_in_the_data_model(key):
    assert f"`{key}`" in STORE


def test_every_key_that_the_functions_build_is_in_the_data_model():
    built = set(_keys_the_functions_build())
    assert {"load", "cfg", "r:<k>:pages", "sched:fence"} <= built, "the search is broken"
    known = set(re.findall(r"`([^`]+)`", STORE))
    missing = {key for key in built if not any(name.startswith(key) for name in known)}
    assert missing == set()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_is_in_the_function_table(function):
    assert re.search(rf"^\| `{function}` \|", STORE, re.MULTILINE)


@pytest.mark.parametrize(
    "field", [field.name for kind in (PoolConstants, PoolIdentity) for field in fields(kind)]
)
def test_every_field_of_cfg_is_in_the_data_model(field):
    assert f"`{field}`" in STORE


@pytest.mark.parametrize(
    ("name", "default"), [(field.name, field.default) for field in fields(PoolConstants)]
)
def test_the_data_model_states_the_default_of_each_constant(name, default):
    shown = default if isinstance(default, str) else f"{default:g}"
    assert re.search(rf"^\| `{name}` \| {shown} \|", STORE, re.MULTILINE)


def test_every_kind_of_error_stands_in_the_drawn_tree():
    kinds = [name for name, member in vars(errors).items() if inspect.isclass(member)]
    assert kinds
    assert [name for name in kinds if name not in (errors.__doc__ or "")] == []
