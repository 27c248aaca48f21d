"""Names of blocks: the same in every process, different wherever K/V may differ."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.protocol.hashing import (
    HASH_DIGITS,
    chain_hashes,
    domain_root,
    next_hash,
    token_bytes,
    unpack_tokens,
)

TOKENS = list(range(10))
ROOT = domain_root("model-a", 4)
token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=40)

GOLDEN_ROOTS = {
    ("", 16, ""): "ecf134530f141c3341283a1a53e1fd76",
    ("model-a", 4, ""): "bfd21399ec7daf5518f537fdfd9b359e",
    ("model-a", 4, "tenant"): "3b38473a514cb8f031a67b93d25f8d40",
    ("modèle", 4, "sel"): "7c5c496456c5f062c93d26dc97421a90",
}
GOLDEN_CHAINS = {
    ("model-a", 4, ""): ("3429258fd42d7449d4f7f2148728231f", "5b52ed4017ba4db16b869b2267c2215b"),
    ("model-a", 4, "tenant"): (
        "07d5b04b7c47532988e9e5d24f99485b",
        "a953deb9437b2f6b70817c60d3d0a3bb",
    ),
}
"""Of the tokens 0 to 9. A change here parts every pool that is up: it needs a new SCHEME."""


@pytest.mark.parametrize("domain", GOLDEN_ROOTS)
def test_a_domain_root_is_what_it_always_was(domain):
    assert domain_root(*domain) == GOLDEN_ROOTS[domain]


@pytest.mark.bar(17)
@pytest.mark.parametrize("domain", GOLDEN_CHAINS)
def test_a_chain_is_what_it_always_was(domain):
    assert chain_hashes(TOKENS, 4, domain_root(*domain)) == GOLDEN_CHAINS[domain]


@pytest.mark.bar(16)
@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_interpreter_gives_the_same_names(seed):
    program = (
        "from lmpoold.protocol.hashing import *\n"
        "print(*chain_hashes(range(10), 4, domain_root('model-a', 4, 'tenant')))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert tuple(out.split()) == chain_hashes(TOKENS, 4, domain_root("model-a", 4, "tenant"))


@pytest.mark.better(16)
@pytest.mark.bar(17)
def test_domains_that_differ_in_one_part_share_no_name():
    domains = [
        ("model-a", 4, ""),
        ("model-b", 4, ""),
        ("model-a", 5, ""),
        ("model-a", 4, "s"),
        ("model-a", 4, "model-a"),
        ("s", 4, "model-a"),
    ]
    assert len({domain_root(*domain) for domain in domains}) == len(domains)


@given(st.text(), st.text(), st.text(), st.text())
@pytest.mark.bar(18)
def test_no_two_domains_spell_the_same_bytes(model, salt, other_model, other_salt):
    same = (model, salt) == (other_model, other_salt)
    assert (domain_root(model, 4, salt) == domain_root(other_model, 4, other_salt)) is same


@pytest.mark.bar(18)
def test_a_salt_that_spells_another_tag_is_still_a_salt():
    forged = domain_root("m;salt=1:x", 4, "")
    assert forged != domain_root("m", 4, "x")
    assert domain_root("m", 4, "x;block=1:8") != domain_root("m", 8, "x")


@given(token_lists, st.integers(1, 9))
def test_only_complete_blocks_have_names(tokens, block_size):
    found = chain_hashes(tokens, block_size, ROOT)
    assert len(found) == len(tokens) // block_size
    assert all(len(name) == HASH_DIGITS and set(name) <= set("0123456789abcdef") for name in found)


@given(token_lists, token_lists, st.integers(1, 5))
def test_two_prompts_share_names_exactly_as_far_as_they_share_blocks(left, right, block_size):
    shared = 0
    while (
        left[: (shared + 1) * block_size] == right[: (shared + 1) * block_size]
        and min(len(left), len(right)) >= (shared + 1) * block_size
    ):
        shared += 1
    pairs = zip(
        chain_hashes(left, block_size, ROOT), chain_hashes(right, block_size, ROOT), strict=False
    )
    assert [a == b for a, b in pairs].count(True) == shared


@given(token_lists, st.integers(1, 5))
def test_a_chain_grown_block_by_block_is_the_chain(tokens, block_size):
    parent, grown = ROOT, []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = next_hash(parent, tokens[start : start + block_size])
        grown.append(parent)
    assert tuple(grown) == chain_hashes(tokens, block_size, ROOT)


def test_the_same_block_under_another_parent_has_another_name():
    one, two, three = chain_hashes([7] * 12, 4, ROOT)
    assert len({one, two, three}) == 3


def test_tokens_are_four_little_endian_bytes_each():
    assert token_bytes([1, 256, 2**31 - 1]) == b"\x01\0\0\0\0\x01\0\0\xff\xff\xff\x7f"


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_a_token_outside_int32_is_an_error_not_another_name(token):
    with pytest.raises(OverflowError):
        chain_hashes([token], 1, ROOT)


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_holds_at_least_one_token(block_size):
    with pytest.raises(ValueError, match="block_size must be positive"):
        chain_hashes(TOKENS, block_size, ROOT)


def test_packed_tokens_come_back_and_half_of_one_does_not():
    assert unpack_tokens(token_bytes([5, 0, 2**31 - 1])) == (5, 0, 2**31 - 1)
    with pytest.raises(ValueError, match="4 bytes each, got 5"):
        unpack_tokens(b"12345")
    with pytest.raises(OverflowError, match="whole numbers"):
        token_bytes(["1"])
