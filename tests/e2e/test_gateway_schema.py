"""What the gateway says of itself in OpenAPI's words, tried out on a real pool."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.gateway_house import MODEL

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
CHECKS += [response_schema_conformance]
OPERATIONS = ("chat", "completion", "models", "model", "health", "ready", "metrics")
OPERATIONS += ("pool", "pages", "block", "request")
BRIEF = settings(
    max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def schema(house):
    return schemathesis.openapi.from_url(f"{house.url}/openapi.json")


def operation(schema, name):
    found = {
        one.ok().definition.raw["operationId"]: one.ok() for one in schema.get_all_operations()
    }
    assert set(found) == set(OPERATIONS)
    return found[name]


def brief(case):
    """Ask for what is over soon: hundreds of long answers prove nothing more."""
    if isinstance(case.body, dict):
        asked = {"max_tokens": 2, "max_completion_tokens": 2, "n": 2}
        case.body |= {name: most for name, most in asked.items() if case.body.get(name)}
        case.body.pop("deadline_ms", None)
        case.body["model"] = MODEL
    return case


def ask(case):
    return case.call(timeout=60)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_the_description_allows_is_answered_as_it_says(schema, name):
    asked = operation(schema, name)

    @BRIEF
    @given(case=asked.as_strategy(GenerationMode.POSITIVE))
    def each(case):
        case = brief(case)
        case.validate_response(ask(case), checks=CHECKS)

    await asyncio.to_thread(each)


@pytest.mark.parametrize("name", ["chat", "completion"])
async def test_what_the_description_forbids_is_refused(house, schema, name):
    asked = operation(schema, name)

    @BRIEF
    @given(case=asked.as_strategy(GenerationMode.NEGATIVE))
    def each(case):
        case.validate_response(ask(case), checks=[*CHECKS, negative_data_rejection])

    await asyncio.to_thread(each)
    await house.idle()


async def test_the_description_names_the_pools_own_bounds(house):
    async with httpx.AsyncClient(base_url=house.url) as web:
        said = (await web.get("/openapi.json")).json()
        body = said["paths"]["/v1/completions"]["post"]["requestBody"]
        fields = body["content"]["application/json"]["schema"]["properties"]
        most = fields["temperature"]["anyOf"][0]["maximum"]
        asked = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        for value, status in ((most, 200), (most + 1, 400)):
            answer = await web.post("/v1/completions", json={**asked, "temperature": value})
            assert answer.status_code == status
