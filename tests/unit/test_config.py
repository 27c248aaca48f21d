"""Constants of the pool: bounds, and the text that `cfg` holds."""

from dataclasses import fields

import pytest

from lmpoold.protocol.config import SWITCHES, PoolConstants, PoolIdentity
from lmpoold.protocol.errors import ConfigError

NAMES = [field.name for field in fields(PoolConstants)]


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_below_its_least_value_is_refused_by_name(name):
    least = 0 if name.startswith("w_") or name in SWITCHES else 1
    PoolConstants(**{name: least})
    with pytest.raises(ConfigError, match=rf"^{name} must be at least {least}"):
        PoolConstants(**{name: least - 1})


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_that_is_not_a_number_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"^{name} must be at least"):
        PoolConstants(**{name: float("nan")})


def test_the_text_of_each_constant_is_its_value():
    for name, text in PoolConstants().to_fields().items():
        assert float(text) == getattr(PoolConstants(), name)


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
