"""The table of roles: what it names exists, and it grants what the functions need."""

import re

import pytest

from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.roles import ADMIN, ROLES, acl_file, user_name
from lmpoold.store.library import FUNCTIONS
from tests.house.tree import LUA, text_of

KEYS = Keyspace("p")
PASSWORDS = {name: f"password of {name}" for name in (*ROLES, ADMIN)}
SHARED = ("base", "cfg", "client", "flight", "lease", "plan", "gate")
"""Parts whose locals the functions of other parts use."""


def granted(role):
    found = {
        name.partition("|")[0] for grant in ROLES[role].grants for name in grant.commands.split()
    }
    return found | {"time"}


def defined_in(part):
    return set(re.findall(r"^on\('(\w+)'", text_of(LUA / f"{part}.lua"), re.MULTILINE))


def commands_of(part):
    return {name.lower() for name in re.findall(r"call\('([A-Z]+)'", text_of(LUA / f"{part}.lua"))}


PARTS = [path.stem for path in LUA.glob("*.lua")]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_calls_functions_that_exist_as_what_they_are(role):
    reads = {name for name, only_reads in FUNCTIONS.items() if only_reads}
    assert set(ROLES[role].reads.split()) <= reads
    assert set(ROLES[role].calls.split()) <= FUNCTIONS.keys() - reads


def test_every_function_belongs_to_somebody():
    called = {name for role in ROLES.values() for name in (role.calls + " " + role.reads).split()}
    assert FUNCTIONS.keys() - called == set()


def test_a_scheduler_may_use_every_command_of_the_library():
    assert set().union(*map(commands_of, PARTS)) - granted("scheduler") == set()


@pytest.mark.parametrize("part", PARTS)
def test_a_worker_may_use_the_commands_of_its_functions(part):
    calls = set(ROLES["worker"].calls.split())
    if calls & defined_in(part) or part in SHARED:
        known = granted("worker")
        others = defined_in(part) - calls
        needed = commands_of(part) - known
        assert needed == set() or (others and needed <= granted("scheduler")), needed


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_granted_keys_of_the_data_model_alone(role):
    known = {name for name, member in vars(Keyspace).items() if isinstance(member, property)}
    fixed = {getattr(KEYS, name).removeprefix(KEYS.prefix) for name in known - {"prefix"}}
    patterns = {"*", "r:*", "w:*", "req:*", "out:*", "open:*", "emitted:*", "plan:*", "sched:*"}
    named = {name for grant in ROLES[role].grants for names in grant.keys for name in names.split()}
    assert named <= fixed | patterns


def test_a_file_holds_digests_and_keys_of_one_pool_and_lets_nobody_in_by_default():
    text = acl_file("p", PASSWORDS)
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["user", "default", "off"]
    assert len(lines) == len(ROLES) + 2
    assert not [word for word in PASSWORDS.values() if word in text]
    for name in ROLES:
        (line,) = [line for line in lines if line.startswith(f"user {user_name('p', name)} on #")]
        patterns = re.findall(r"~(\S+?)[) ]", line + " ")
        assert patterns
        assert all(pattern.startswith("lmpool:{p}:") for pattern in patterns)
        assert "+@all" not in line


def test_two_pools_on_a_server_have_users_of_their_own():
    assert user_name("a", "worker") != user_name("b", "worker")
