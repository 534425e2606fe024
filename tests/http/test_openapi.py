"""The document tells exactly the routes there are, and its examples work."""

import base64
import hashlib
import re
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from starlette.routing import Route as PathRoute

from tallystick import app
from tallystick.http import api, examples, openapi
from tallystick.http.directory import Directory
from tallystick.http.problem import PROBLEMS
from tallystick.http.resource import Resource
from tallystick.ledger import kinds as operation
from tallystick.money.amounts import amount_fault
from tallystick.settings import Settings
from tallystick.webhooks.receiver import Front
from tests import servers
from tests.http.site import Site


@pytest.fixture
def document(client: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def _operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m.upper(), p): o for p, methods in document["paths"].items() for m, o in methods.items()}


def test_every_documented_route_exists_and_no_other_method_does(
    client: httpx2.Client, document: dict[str, Any]
) -> None:
    documented = _operations(document)
    for path in document["paths"]:
        url = path.replace("{id}", "documented").replace("{provider}", "simulator")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            status = client.request(method, url).status_code
            assert (status != 405) == ((method, path) in documented), (method, path, status)


async def test_the_router_and_the_document_hold_the_same_calls(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        front = api.build(service)
        assert isinstance(front, Front)
        assert isinstance(front.api, Directory)
        routed = {
            (method, route.path)
            for route in front.api.router.routes
            if isinstance(route, PathRoute) and isinstance(route.endpoint, Resource)
            for method in route.endpoint._methods
            if method != "HEAD"
        }
        assert len(front.api.router.routes) == len({path for _, path in routed})
        table = api.route_table(service, api.metrics_of(service))
        # The receiver stands in front of the router.
        assert routed | {("POST", "/webhooks/{provider}")} == _operations(openapi.document(table)).keys()


def test_the_account_pattern_is_the_cores() -> None:
    assert operation._ACCOUNT_ID.pattern == openapi.ACCOUNT_ID_PATTERN


def test_the_document_is_open_api_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    names = [operation["operationId"] for operation in _operations(document).values()]
    assert len(names) == len(set(names))
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= document["components"]["schemas"].keys()


def test_every_example_fits_its_schema(document: dict[str, Any]) -> None:
    for operation_ in _operations(document).values():
        contents = [
            *operation_.get("requestBody", {}).get("content", {}).values(),
            *(c for answer in operation_["responses"].values() for c in answer.get("content", {}).values()),
        ]
        for content in contents:
            found = [example["value"] for example in content.get("examples", {}).values()]
            for example in [*found, *([content["example"]] if "example" in content else [])]:
                _validate(document, content["schema"], example)


def test_the_example_requests_work(site: Site) -> None:
    with site.client("example") as client:
        for name, body in {
            "amber:dev_1": examples.ACCOUNTS["with a velocity limit"],
            "amber:dev_2": examples.ACCOUNTS["plain"],
            "amber:fees": examples.ACCOUNTS["plain"],
            "outside:bank": examples.ACCOUNTS["boundary"],
        }.items():
            assert client.put(f"/v1/accounts/{name}", json=body).status_code in (200, 201)
        for name in ("topup", "transfer", "post"):
            done = client.post(
                "/v1/operations",
                json=examples.OPERATIONS[name],
                headers={"idempotency-key": f"example-{name}"},
            )
            assert done.status_code == 201, done.text
            assert done.json().keys() <= examples.TRANSACTION.keys()
        batch = client.post("/v1/operations/batch", json=examples.BATCH["two transfers"])
        assert {outcome["status"] for outcome in batch.json()["outcomes"]} == {"committed"}


def test_the_amounts_of_the_document_are_the_cores(document: dict[str, Any]) -> None:
    amount = document["components"]["schemas"]["AmountMicros"]
    assert amount_fault(amount["minimum"]) is amount_fault(amount["maximum"]) is None
    assert amount_fault(amount["minimum"] - 1) is not None
    assert amount_fault(amount["maximum"] + 1) is not None


def test_a_call_with_a_key_says_so(document: dict[str, Any]) -> None:
    for (_, path), operation_ in _operations(document).items():
        assert bool(operation_["security"]) == path.startswith("/v1/"), path


def test_the_page_shows_every_call_and_problem_and_loads_nothing(
    client: httpx2.Client, document: dict[str, Any]
) -> None:
    answer = client.get("/docs")
    page = answer.text
    for operation_ in _operations(document).values():
        assert f'id="{operation_["operationId"]}"' in page
    for code in PROBLEMS:
        assert f'id="{code}"' in page
    assert not re.findall(r"(?:src|href)=\"(?!#|/openapi\.json)", page)
    assert "<script" not in page
    policy = answer.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def _validate(document: dict[str, Any], schema: dict[str, Any], example: object) -> None:
    whole = {**schema, "components": document["components"]}
    jsonschema_rs.Draft202012Validator(whole).validate(example)
