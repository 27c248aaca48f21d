"""Constants of the pool: bounds, and the text that `cfg` holds."""

from dataclasses import fields

import pytest

from lmpoold.protocol.config import PoolConstants, PoolIdentity, read_constants
from lmpoold.protocol.errors import ConfigError

NAMES = [field.name for field in fields(PoolConstants)]


NUMBERS = [name for name in NAMES if name != "pairs"]
MAY_BE_ZERO = {"bypass_slack", "spill_gap", "spill_slack", "origin_hops", "max_client_requests"}
MAY_BE_ZERO |= {
    "foreground",
    "foreground_ratio",
    "fetch",
    "fetch_ratio",
    "fetch_slack",
    "background",
    "hot_skew",
    "hot_idle",
    "hot_ratio",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_constant_below_its_least_value_is_refused_by_name(name):
    least = 0 if name.startswith("w_") or name in MAY_BE_ZERO else 1
    PoolConstants(**{name: least})
    with pytest.raises(ConfigError, match=rf"^{name} must be from {least} to"):
        PoolConstants(**{name: least - 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e13])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_constant_that_is_no_sensible_number_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} must be from"):
        PoolConstants(**{name: value})


@pytest.mark.parametrize("pairs", ["", "0-1", "0-1,2-3,10-2"])
def test_pairs_are_ranks_two_by_two(pairs):
    assert PoolConstants(pairs=pairs).to_fields()["pairs"] == pairs


@pytest.mark.parametrize("pairs", ["0", "0-1,", "0-1 2-3", "a-b", "0-1-2", "-1-2"])
def test_pairs_that_cannot_be_read_are_refused(pairs):
    with pytest.raises(ConfigError, match="pairs must be like 0-1,2-3"):
        PoolConstants(pairs=pairs)


def test_what_an_operator_wrote_becomes_what_cfg_holds():
    given = {"w_hop": "1e1", "max_parked": "7", "pairs": "0-1"}
    assert read_constants(given) == {"w_hop": "10", "max_parked": "7", "pairs": "0-1"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"w_hopp": "1"}, "no constant 'w_hopp'; there are .*bypass_slack, .*w_wait"),
        ({"block_size": "32"}, "no constant 'block_size'"),
        ({"max_parked": "many"}, "max_parked must be a number"),
        ({"max_parked": "1.5"}, "max_parked must be a number"),
        ({"w_hop": "nan"}, "w_hop must be from 0"),
        ({"w_hop": "1", "max_parked": "0"}, "max_parked must be from 1"),
    ],
)
def test_what_an_operator_cannot_mean_is_refused_with_what_can_be(given, why):
    with pytest.raises(ConfigError, match=why):
        read_constants(given)


def test_the_text_of_each_constant_is_its_value():
    for name, text in PoolConstants().to_fields().items():
        kind = type(getattr(PoolConstants(), name))
        assert kind(text) == getattr(PoolConstants(), name)


def test_the_text_of_a_long_constant_is_its_value():
    assert PoolConstants(out_ttl_ms=1_234_567).to_fields()["out_ttl_ms"] == "1234567"


def test_identity_and_constants_share_no_field_of_cfg():
    assert not {field.name for field in fields(PoolIdentity)} & set(NAMES)


def test_an_identity_is_told_field_by_field_as_text():
    identity = PoolIdentity(
        protocol="1",
        model="m",
        fingerprint="f",
        dtype="float32",
        block_size=16,
        kv_block_bytes=10**9,
        domain="d",
        max_model_len=2048,
    )
    assert identity.to_fields() == {
        "protocol": "1",
        "model": "m",
        "fingerprint": "f",
        "dtype": "float32",
        "block_size": "16",
        "kv_block_bytes": "1000000000",
        "domain": "d",
        "max_model_len": "2048",
    }
