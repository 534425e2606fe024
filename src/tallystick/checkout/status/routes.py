"""The part of the route table that is about how orders stand."""

from typing import Final

from tallystick.checkout.status.rules import VERSION_PATTERN, OrderStatus
from tallystick.checkout.status.views import OrderStatuses
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.parameters import ORDER_ID
from tallystick.http.route import Answer, Parameter, Route
from tallystick.settings import LIMITS

_WAIT: Final = Parameter(
    name="wait",
    place="query",
    description=(
        f"Whole seconds to wait for something worth telling, 0 to {LIMITS.status_wait_seconds:g}; absent: answer at "
        "once. A longer wait is refused; ask again instead."
    ),
    schema={"type": "integer", "minimum": 0, "maximum": int(LIMITS.status_wait_seconds), "default": 0},
    example="20",
)
_AFTER: Final = Parameter(
    name="after",
    place="query",
    description="The `version` of the answer you have: waits for another, whatever the order's status.",
    schema={"type": "string", "pattern": f"^{VERSION_PATTERN}$"},
    example=str(examples.ORDER_STATUS["version"]),
)


def order_status_routes(statuses: OrderStatuses) -> tuple[Route, ...]:
    """There is one."""
    return (
        Route(
            method="GET",
            path="/v1/orders/{id}/status",
            endpoint=statuses.read,
            name="read_order_status",
            group="Orders",
            summary="Wait for an order",
            description=(
                "How an order and its payment stand. With `wait` the answer comes with the commit that changes it, or "
                "when the time is over: then it is what it was, with the same `version`. An order that is not "
                "`PENDING` is answered at once, unless `after` names the version you have. Without `wait` and `after` "
                f"the answer may be {LIMITS.status_age_seconds:g} s old, but never one that something failed."
            ),
            need=Need.READ,
            parameters=(ORDER_ID, _WAIT, _AFTER),
            answers={
                200: Answer(description="How it stands.", types=(OrderStatus,), example=examples.ORDER_STATUS),
            },
            own_problems=("order_unknown", "busy"),
        ),
    )
