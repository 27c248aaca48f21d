"""The gateway's description says of each field what the gateway does."""

import pytest

from lmpoold.gateway import reading
from lmpoold.gateway.faults import STATUS
from lmpoold.gateway.openapi import REFUSALS, describe
from lmpoold.protocol.request import FIELDS

PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
SAID = describe("9.9")


def properties(kind):
    body = SAID["paths"][PATHS[kind]]["post"]["requestBody"]["content"]["application/json"]
    return body["schema"]["properties"]


@pytest.mark.parametrize("kind", PATHS)
def test_the_fields_described_are_fields_that_are_read_and_lack_only_what_does_nothing(kind):
    read = reading._SHARED | reading._OWN[kind] | reading._PASSED.keys()
    described = set(properties(kind))
    assert described <= read | reading._IGNORED
    assert read - described == set()


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "top_k", "deadline_ms"])
def test_bounds_are_the_pools_own(name):
    number = properties("completion")[name]["anyOf"][0]
    assert (number["minimum"], number["maximum"]) == (FIELDS[name].low, FIELDS[name].high)


def test_every_status_that_the_pool_leads_to_is_described():
    assert {status for status, _ in STATUS.values()} <= set(REFUSALS)


def test_every_reference_leads_somewhere():
    assert set(SAID["components"]["schemas"]) == {"Fault"}
    assert SAID["info"]["version"] == "9.9"
