"""Parameters of calls: parts of the path, of the query, and headers, as the documentation tells them."""

from typing import Final

from tallystick.http import examples
from tallystick.http.route import Parameter
from tallystick.money.currencies import EXPONENTS
from tallystick.settings import LIMITS
from tallystick.settlement.rules import STATUSES

ACCOUNT_ID: Final = Parameter(
    name="id",
    place="path",
    description="The account's id.",
    schema={"$ref": "#/components/schemas/AccountId"},
    required=True,
    example="amber:dev_1",
)
IDEMPOTENCY_KEY: Final = Parameter(
    name="Idempotency-Key",
    place="header",
    description=(
        "Names this request for ever: repeat it with the request. 1 to 255 visible ASCII characters, "
        'bare or as a quoted string; `abc` and `"abc"` are the same key.'
    ),
    schema={"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~][!-~]*$"},
    required=True,
    example="invoice-17",
)
REPLAYED: Final = Parameter(
    name="Idempotent-Replayed",
    place="header",
    description="`true` on a replay: the recorded answer to the byte, and nothing was run.",
    schema={"type": "string", "enum": ["true"]},
)
LIMIT: Final = Parameter(
    name="limit",
    place="query",
    description=f"Rows of a page, 1 to {LIMITS.page}; 100 if absent.",
    schema={"type": "integer", "minimum": 1, "maximum": LIMITS.page, "default": 100},
)


def cursor(schema: dict[str, object]) -> Parameter:
    return Parameter(
        name="cursor",
        place="query",
        description="The `next` of the page before; absent: the first.",
        schema=schema,
    )


TRANSACTION_ID: Final = Parameter(
    name="id",
    place="path",
    description="The transaction's id.",
    schema={"$ref": "#/components/schemas/TransactionId"},
    required=True,
    example=str(examples.TRANSACTION["id"]),
)
AT: Final = Parameter(
    name="at",
    place="query",
    description="An RFC 3339 time with its zone.",
    schema={"type": "string", "format": "date-time"},
    example="2026-01-31T12:00:00Z",
)
SETTLEMENT_ID: Final = Parameter(
    name="id",
    place="path",
    description="The settlement's id.",
    schema={"$ref": "#/components/schemas/SettlementId"},
    required=True,
    example=str(examples.SETTLEMENT["id"]),
)
STATUS: Final = Parameter(
    name="status",
    place="query",
    description="Only those in this state.",
    schema={"type": "string", "enum": [*STATUSES]},
)
SQUAD: Final = Parameter(
    name="squad_id",
    place="query",
    description="Only this squad's.",
    schema={"$ref": "#/components/schemas/SquadId"},
    example="amber",
)
STUCK: Final = Parameter(
    name="stuck",
    place="query",
    description="`true`: only those in processing that are overdue, by the database's clock.",
    schema={"type": "string", "enum": ["true", "false"]},
)
NUMBERED: Final = cursor({"type": "string", "pattern": "^[1-9][0-9]{0,17}$"})
APPROVAL_ID: Final = Parameter(
    name="id",
    place="path",
    description="The approval's id.",
    schema={"$ref": "#/components/schemas/ApprovalId"},
    required=True,
    example=str(examples.APPROVAL["id"]),
)
FEE_CURRENCY: Final = Parameter(
    name="currency",
    place="path",
    description="An ISO 4217 code, or `default` for every currency without a fee of its own.",
    schema={"type": "string", "enum": ["default", *sorted(EXPONENTS)]},
    required=True,
    example="USD",
)
ORDER_ID: Final = Parameter(
    name="id",
    place="path",
    description="The order's id.",
    schema={"$ref": "#/components/schemas/OrderId"},
    required=True,
    example=str(examples.ORDER["id"]),
)
SKU: Final = Parameter(
    name="sku",
    place="path",
    description="What is for sale.",
    schema={"$ref": "#/components/schemas/Sku"},
    required=True,
    example=str(examples.ORDER["sku"]),
)
VERBOSE: Final = Parameter(name="verbose", place="query", description="Show every check.", schema={"type": "string"})
RETRY_AFTER: Final = Parameter(
    name="Retry-After",
    place="header",
    description="Seconds after which it is worth asking again.",
    schema={"type": "string", "pattern": "^[1-9][0-9]*$"},
)
