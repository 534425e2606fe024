"""Requests made from the document: none is a server error, none is answered as not documented."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as start_from
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import servers
from tests.faults.matrix import seed
from tests.http import site as sites

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# For each call, as many that fit the document as that do not.
EXAMPLES = 120
CALLS = (
    "submit_operation",
    "submit_batch",
    "read_operation",
    "reserve_order",
    "read_order",
    "read_order_status",
    "cancel_order",
    "pay_order",
    "resolve_payment",
    "refund_order",
    "put_sku",
    "read_sku",
    "put_account",
    "read_account",
    "list_accounts",
    "list_entries",
    "create_settlement",
    "create_settlements",
    "list_settlements",
    "read_settlement",
    "dispute_settlement",
    "resolve_settlement",
    "list_approvals",
    "read_approval",
    "decide_approval",
    "list_settlement_policies",
    "put_settlement_policy",
    "read_authority_policy",
    "put_authority_policy",
    "list_destinations",
    "put_destination",
    "decide_refund",
    "read_checkout_policy",
    "put_checkout_policy",
    "live",
    "ready",
    "metrics",
    "openapi",
    "docs",
    "receive_webhook",
)
BATCHES = ("submit_batch", "create_settlements")


@pytest.fixture(scope="module")
def site(embedded18: servers.Server) -> Iterator[sites.Site]:
    """Without the broken kind, whose every operation is rightly a 500."""
    with sites.running(embedded18.fresh_database(), kinds=(sites.PICKY,)) as running:
        yield running


@pytest.fixture(scope="module")
def calls(site: sites.Site) -> dict[str, Any]:
    document = httpx2.get(f"http://127.0.0.1:{site.port}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    found: list[Any] = list(schema.get_all_operations())
    return {result.ok().definition.raw["operationId"]: result.ok() for result in found}


def test_every_call_is_tried(calls: dict[str, Any]) -> None:
    assert calls.keys() == set(CALLS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "does_not_fit"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_keeps_to_its_document(site: sites.Site, calls: dict[str, Any], name: str, mode: GenerationMode) -> None:
    operation = calls[name]
    if mode is GenerationMode.NEGATIVE and not (operation.definition.raw.keys() & {"parameters", "requestBody"}):
        # Nothing can be wrong with a call that takes nothing.
        return

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def keeps(case: schemathesis.Case[Any]) -> None:
        assume(all(_leaves_a_trace(value) for value in (case.query or {}).values()))
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{site.port}",
            headers={"Authorization": f"Bearer {site.keys['default', 'admin']}"},
            # A batch answers 200 and tells of each item that is wrong.
            checks=[*CHECKS, *([] if name in BATCHES else [negative_data_rejection])],
        )

    # Other examples with every commit, the same ones for one: a failure can be repeated.
    start_from(int.from_bytes(sha256(f"{seed()}/{name}/{mode}".encode()).digest()[:8], "big"))(keeps)()


def _leaves_a_trace(value: object) -> bool:
    """Nothing, and what holds nothing, is not sent in a query: what was meant to be wrong would be a good request."""
    if isinstance(value, dict):
        return any(_leaves_a_trace(one) for one in value.values())
    if isinstance(value, list | tuple):
        # A list in a list is written out once more, down to what it holds.
        return any(_leaves_a_trace(one) for one in value)
    return value is not None


@pytest.mark.parametrize("query", [{"k": [[]]}, {"k": [None]}, {"k": None}])
def test_what_holds_nothing_is_not_sent(query: dict[str, Any]) -> None:
    url = requests.Request("GET", "http://localhost/", params=query).prepare().url
    assert not _leaves_a_trace(query["k"])
    assert "=" not in str(url)
