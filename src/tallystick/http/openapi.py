"""The OpenAPI 3.1 document, made from the route table and the msgspec types it names."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

import msgspec

from tallystick.checkout.order.rules import MAX_AMOUNT_MICROS, MAX_QUANTITY, MAX_STOCK, SKU_PATTERN
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.problem import PROBLEMS, Problem
from tallystick.http.route import Answer, Parameter, Route
from tallystick.ledger.kinds import BUILT_IN, MAX_MEMO
from tallystick.ledger.rules import MAX_LEGS, MIN_LEGS
from tallystick.ledger.velocity import MAX_LIMITS, MAX_WINDOW_SECONDS
from tallystick.money.amounts import MAX_MICROS
from tallystick.money.currencies import EXPONENTS
from tallystick.providers.known import KNOWN
from tallystick.settings import LIMITS
from tallystick.settlement.policy_views import WHOLE_PPM
from tallystick.settlement.terms import MAX_ATTRIBUTION, MAX_DESTINATION
from tallystick.settlement.views import SQUAD_PATTERN
from tallystick.webhooks.receiver import PREFIX
from tallystick.webhooks.receiver import PROBLEMS as WEBHOOK_PROBLEMS

_REF: Final = "#/components/schemas/{name}"
# Characters of a reason or of evidence (settlement.review.flow).
MOST_WORDS: Final = 4_000
ACCOUNT_ID_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9:_.@+=-]{0,199}"

# What the rules checks itself, in better words than a schema validator's; here it is only told.
_VALUES: Final[dict[str, dict[str, Any]]] = {
    "AccountId": {"type": "string", "pattern": f"^{ACCOUNT_ID_PATTERN}$", "examples": ["amber:dev_1"]},
    "TransactionId": {"type": "string", "pattern": "^tx_[0-9a-f]{32}$"},
    "AmountMicros": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_MICROS,
        "description": "Millionths of the major unit: 5000000 is 5.00 USD.",
    },
    "SignedMicros": {
        "type": "integer",
        "minimum": -MAX_MICROS,
        "maximum": MAX_MICROS,
        "not": {"const": 0},
        "description": "Millionths of the major unit; positive is money into the account.",
    },
    "Currency": {"type": "string", "enum": sorted(EXPONENTS), "description": "ISO 4217."},
    "Memo": {"type": "string", "maxLength": MAX_MEMO, "pattern": "^[^\\u0000]*$"},
    "SettlementId": {"type": "string", "pattern": "^st_[0-9a-f]{32}$"},
    "ApprovalId": {"type": "string", "pattern": "^ap_[0-9a-f]{32}$"},
    "AttributionId": {"type": "string", "pattern": f"^[!-~]{{1,{MAX_ATTRIBUTION}}}$", "examples": ["bounty-42"]},
    "SquadId": {"type": "string", "pattern": f"^{SQUAD_PATTERN}$", "examples": ["amber"]},
    "Destination": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_DESTINATION,
        "description": "Whom to pay, in the provider's own words. Stripe: acct_..., ba_..., acct_.../ba_...",
    },
    "OrderId": {"type": "string", "pattern": "^or_[0-9a-f]{32}$"},
    "Sku": {"type": "string", "pattern": f"^{SKU_PATTERN}$", "examples": ["lamp-brass"]},
    "Quantity": {"type": "integer", "minimum": 1, "maximum": MAX_QUANTITY},
    "Stock": {"type": "integer", "minimum": 0, "maximum": MAX_STOCK},
    "OrderMicros": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_AMOUNT_MICROS,
        "description": "Millionths of the major unit, for the whole order.",
    },
    "Words": {"type": "string", "minLength": 1, "maxLength": MOST_WORDS, "pattern": "^[^\\u0000]*$"},
    "FeeMicros": {"type": "integer", "minimum": 0, "maximum": MAX_MICROS},
    "IdempotencyKey": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_MOVEMENT_FIELDS: Final = {
    **dict.fromkeys(("debit", "credit", "account", "source", "destination", "revenue", "held", "to"), "AccountId"),
    **dict.fromkeys(("hold", "transaction"), "TransactionId"),
    "amount_micros": "AmountMicros",
    "currency": "Currency",
    "memo": "Memo",
}
_FIELDS: Final[dict[str, dict[str, str]]] = {
    **{kind.request.__name__: _MOVEMENT_FIELDS for kind in BUILT_IN},
    "PostLeg": {"account": "AccountId", "amount_micros": "SignedMicros", "currency": "Currency"},
    "AccountRequest": {"currency": "Currency"},
    "SettlementRequest": {
        "attribution_id": "AttributionId",
        "squad_id": "SquadId",
        "gross_micros": "AmountMicros",
        "currency": "Currency",
        "destination": "Destination",
    },
    "OrderRequest": {
        "sku": "Sku",
        "quantity": "Quantity",
        "amount_micros": "OrderMicros",
        "currency": "Currency",
    },
    "SkuRequest": {"stock": "Stock"},
    "DisputeRequest": {"reason": "Words"},
    "ResolveRequest": {"reason": "Words", "evidence": "Words"},
    "DecisionRequest": {"reason": "Words"},
    "FeeRequest": {"fixed_micros": "FeeMicros", "minimum_micros": "FeeMicros"},
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document."""
    routes = tuple(routes)
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {id(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for route in routes:
        paths[route.path][route.method.lower()] = _operation(route, schema_of)
    paths[f"{PREFIX}{{provider}}"]["post"] = _webhook()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tallystick",
            "version": version("tallystick"),
            "summary": "Money moves exactly once, every movement can be explained, and nothing is lost.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": dict(paths),
        "components": {
            "schemas": {**_refined(components), **_VALUES},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key made by `tally keys create`.",
                }
            },
        },
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    types: list[Any] = [Problem]
    for route in routes:
        for answer in route.answers.values():
            types.extend(answer.types)
        if route.body is not None:
            types.append(route.body)
    return types


def _operation(route: Route, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.group],
        "summary": route.summary,
        "description": route.description,
        "security": [] if route.need is Need.NOTHING else [{"key": []}],
        "responses": {
            **{str(status): _answer(answer, schema_of) for status, answer in route.answers.items()},
            **_problems(route),
        },
    }
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.body is not None:
        content: dict[str, Any] = {"schema": schema_of[id(route.body)]}
        content["examples"] = {name: {"value": value} for name, value in route.body_examples.items()}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _webhook() -> dict[str, Any]:
    """The receiver stands in front of the routes; what it is sent is in the providers' own documents."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in WEBHOOK_PROBLEMS:
        by_status[PROBLEMS[code][0]].append(code)
    return {
        "operationId": "receive_webhook",
        "tags": ["Webhooks"],
        "summary": "A provider tells",
        "description": (
            "For providers: the signature is the key, in the headers and over the body that each of them documents. "
            "Answered when the event is durable; told again, it is acknowledged and not stored again."
        ),
        "security": [],
        "parameters": [
            {
                "name": "provider",
                "in": "path",
                "description": "The name it is configured under.",
                "required": True,
                "schema": {"type": "string", "enum": [*KNOWN, "simulator"]},
                "example": "simulator",
            }
        ],
        "requestBody": {
            "required": True,
            "description": f"As the provider signed it, up to {LIMITS.webhook_body_bytes:,} bytes.",
            "content": {"application/json": {"schema": {}, "examples": {"of Stripe": {"value": examples.WEBHOOK}}}},
        },
        "responses": {
            "200": {"description": "Durable, now or before."},
            **{str(status): _problem(codes) for status, codes in sorted(by_status.items())},
        },
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
    }
    return described if parameter.example is None else {**described, "example": parameter.example}


def _answer(answer: Answer, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    schemas = [schema_of[id(type_)] for type_ in answer.types] or [{"type": "string"}]
    content: dict[str, Any] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if answer.example is not None:
        content["example"] = answer.example
    described: dict[str, Any] = {
        "description": answer.description,
        "content": {answer.media_type: content},
    }
    if answer.headers:
        described["headers"] = {
            header.name: {"description": header.description, "schema": header.schema} for header in answer.headers
        }
    return described


def _problems(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in route.problems:
        by_status[PROBLEMS[code][0]].append(code)
    return {str(status): _problem(codes) for status, codes in sorted(by_status.items()) if status not in route.answers}


def _problem(codes: list[str]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(name="Problem")}}
    if examples.PROBLEM["code"] in codes:
        content["example"] = examples.PROBLEM
    return {
        "description": "; ".join(f"`{code}`: {PROBLEMS[code][1]}" for code in codes),
        "content": {"application/problem+json": content},
    }


def _refined(components: dict[str, Any]) -> dict[str, Any]:
    """The types as msgspec tells them, with what the rules knows about their fields."""
    for name, component in components.items():
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
        properties = component.get("properties", {})
        for field, value in _FIELDS.get(name.removesuffix("InBatch"), {}).items():
            if field in properties:
                properties[field] = _narrowed(properties[field], _REF.format(name=value))
        if name.endswith("InBatch") and "idempotency_key" in properties:
            properties["idempotency_key"] = {"$ref": _REF.format(name="IdempotencyKey")}
        if name.removesuffix("InBatch") == "Post":
            properties["legs"] |= {"minItems": MIN_LEGS, "maxItems": MAX_LEGS}
    components["AccountRequest"]["properties"]["floor_micros"]["anyOf"][0] |= {
        "minimum": -MAX_MICROS,
        "maximum": MAX_MICROS,
    }
    components["AccountRequest"]["properties"]["limits"]["maxItems"] = MAX_LIMITS
    limit = components["VelocityLimit"]["properties"]
    limit["window_seconds"] |= {"minimum": 1, "maximum": MAX_WINDOW_SECONDS}
    for bound in ("max_count", "max_sum_micros"):
        limit[bound]["anyOf"][0] |= {"minimum": 0, "maximum": MAX_MICROS}
    components["Batch"]["properties"]["operations"]["maxItems"] = LIMITS.batch_call
    components["SettlementBatch"]["properties"]["settlements"]["maxItems"] = LIMITS.batch_call
    components["FeeRequest"]["properties"]["percent_ppm"] |= {"minimum": 0, "maximum": WHOLE_PPM}
    # In the code these are the recorded bytes, passed on unread.
    components["BatchOutcome"]["properties"]["transaction"] = {"$ref": _REF.format(name="Transaction")}
    return components


def _narrowed(schema: dict[str, Any], reference: str) -> dict[str, Any]:
    if "anyOf" not in schema:
        return {"$ref": reference}
    rest = [choice for choice in schema["anyOf"] if choice == {"type": "null"}]
    return {**schema, "anyOf": [{"$ref": reference}, *rest]}
