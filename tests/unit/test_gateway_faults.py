"""What callers are told: status, code, and the field to change; and who may call at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.gateway.faults import Fault, fault_of
from lmpoold.gateway.keyring import KeyRing, read_keys
from lmpoold.protocol.errors import (
    ConfigError,
    Conflict,
    InvalidRequest,
    LMPoolError,
    NoCapacity,
    ProtocolError,
    RequestFailed,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestFailed("invalid_request", "x"), 400, "invalid_request"),
        (RequestFailed("context_length_exceeded", "x"), 400, "context_length_exceeded"),
        (RequestFailed("model_not_found", "x"), 404, "model_not_found"),
        (RequestFailed("overloaded", "x"), 429, "overloaded"),
        (NoCapacity("x"), 429, "overloaded"),
        (RequestFailed("deadline_exceeded", "x"), 504, "deadline_exceeded"),
        (RequestFailed("cancelled", "x"), 499, "cancelled"),
        (RequestFailed("worker_failed", "x"), 500, "worker_failed"),
        (InvalidRequest("x"), 400, "invalid_request"),
        (Conflict("x"), 409, "request_id_used"),
        (ProtocolError("x"), 500, "pool_error"),
    ],
)
def test_each_error_of_the_pool_has_a_status_and_a_code(error, status, code):
    fault = fault_of(error)
    assert (fault.status, fault.code) == (status, code)
    assert fault.body() == {
        "error": {"message": "x", "type": fault.kind, "param": None, "code": code}
    }
    assert ("Retry-After" in fault.headers) is (status == 429)


def test_the_field_at_fault_is_named():
    assert fault_of(InvalidRequest("`top_p` must be between 0 and 1, got 3")).param == "top_p"
    assert fault_of(InvalidRequest("`nonsense` is nothing")).param is None


@given(st.sampled_from(LMPoolError.__subclasses__()), st.text())
def test_every_error_becomes_a_fault_that_clients_take_for_an_error(kind, text):
    error = kind(text, text) if kind is RequestFailed else kind(text)
    assert 400 <= fault_of(error).status < 600


def test_an_open_gateway_admits_anybody():
    assert KeyRing([]).admit("") == ""


def test_a_key_admits_and_anything_else_is_told_so_with_401():
    ring = KeyRing(["alpha-key", "beta-key"])
    assert ring.admit("Bearer beta-key") == ""
    assert ring.admit("bearer  alpha-key ") == ""
    for header in ("", "Bearer", "Bearer ", "Bearer alpha-ke", "Basic alpha-key", "alpha-key"):
        with pytest.raises(Fault) as caught:
            ring.admit(header)
        assert caught.value.status == 401
        assert caught.value.code == "invalid_api_key"


@given(st.text())
def test_no_header_breaks_the_comparison(header):
    with pytest.raises(Fault):
        KeyRing(["alpha-key"]).admit(header)


def test_salted_keys_have_salts_of_their_own_that_do_not_hold_the_key():
    ring = KeyRing(["alpha-key", "beta-key"], salted=True)
    salts = {ring.admit("Bearer alpha-key"), ring.admit("Bearer beta-key")}
    assert len(salts) == 2
    assert "" not in salts
    assert not any("key" in salt for salt in salts)


def test_a_ring_prints_no_key():
    assert "alpha" not in repr(KeyRing(["alpha-key"]))
    assert "alpha" not in repr(vars(KeyRing(["alpha-key"])))


def test_a_key_file_has_a_key_a_line_and_comments():
    assert read_keys("# people\nalpha-key\n\n  beta-key \n") == ["alpha-key", "beta-key"]


@pytest.mark.parametrize("line", ["short", "two words", "schlüssel-lang"])
def test_a_key_that_cannot_be_one_is_refused_without_being_shown(line):
    with pytest.raises(ConfigError) as caught:
        read_keys(f"# c\n{line}\n")
    assert "line 2" in str(caught.value)
    assert line not in str(caught.value)
