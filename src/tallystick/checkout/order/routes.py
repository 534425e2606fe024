"""The part of the route table that is about orders and the stock they draw on."""

from typing import Final

from tallystick.checkout.order.store import OrderView, SkuView
from tallystick.checkout.order.views import OrderRequest, Orders, SkuRequest
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.idempotency_key import KEY_PROBLEMS
from tallystick.http.parameters import IDEMPOTENCY_KEY, ORDER_ID, REPLAYED, SKU
from tallystick.http.route import Answer, Route

_RESERVE_PROBLEMS: Final = (
    "sku_invalid",
    "quantity_not_integer",
    "quantity_not_positive",
    "quantity_too_large",
    "amount_not_integer",
    "amount_not_positive",
    "amount_overflow",
    "currency_unknown",
    "sku_unknown",
    "quantity_above_stock",
    "sold_out",
    "key_reused",
    "in_flight",
    "busy",
    "outcome_unknown",
)


def order_routes(orders: Orders) -> tuple[Route, ...]:
    """Those of orders and of SKUs."""
    return (*_orders(orders), *_skus(orders))


def _orders(orders: Orders) -> tuple[Route, ...]:
    return (
        Route(
            method="POST",
            path="/v1/orders",
            endpoint=orders.reserve,
            name="reserve_order",
            group="Orders",
            summary="Hold stock for a buyer, exactly once",
            description=(
                "Reserves the quantity until `expires_at`; unpaid by then, and after a grace, it is given back. First "
                "come, first served; never more than there is. Refused with `sold_out` it leaves no trace and its key "
                "unused. The order must be paid with its `reservation_token`."
            ),
            need=Need.WRITE,
            parameters=(IDEMPOTENCY_KEY,),
            body=OrderRequest,
            body_examples=examples.ORDERS,
            answers={
                201: Answer(
                    description="Reserved now, or earlier under this key: then as it was at that moment.",
                    types=(OrderView,),
                    example=examples.ORDER,
                    headers=(REPLAYED,),
                )
            },
            own_problems=(*KEY_PROBLEMS, *_RESERVE_PROBLEMS),
        ),
        Route(
            method="GET",
            path="/v1/orders/{id}",
            endpoint=orders.read,
            name="read_order",
            group="Orders",
            summary="Read an order",
            description=(
                "As it stands. `PENDING` holds its stock, `PAID` has it for good, `CANCELLED` and "
                "`CANCELLED_BY_SWEEPER` hold nothing. `payment` is there once paying was begun: `PENDING`, nobody "
                "knows yet; `COMPLETED`, the provider has the payment, and the order is `PAID` once its money came; "
                "`FAILED`, the last attempt failed for good. `refund` is there once money that did not fit is given "
                "back: it came after the sweeper, a second time, or with another amount."
            ),
            need=Need.READ,
            parameters=(ORDER_ID,),
            answers={200: Answer(description="The order.", types=(OrderView,), example=examples.ORDER_IN_PAYMENT)},
            own_problems=("order_unknown",),
        ),
        Route(
            method="POST",
            path="/v1/orders/{id}/cancel",
            endpoint=orders.cancel,
            name="cancel_order",
            group="Orders",
            summary="Give a reservation back",
            description=(
                "Once: the stock is for sale again. Safe to repeat without a key: an order that was cancelled, by "
                "whomever, is answered as it stands, and nothing is given back twice. A paid one is refused."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID,),
            answers={
                200: Answer(
                    description="It holds nothing any more.", types=(OrderView,), example=examples.CANCELLED_ORDER
                )
            },
            own_problems=("order_unknown", "order_paid", "in_flight", "outcome_unknown"),
        ),
    )


def _skus(orders: Orders) -> tuple[Route, ...]:
    return (
        Route(
            method="PUT",
            path="/v1/skus/{sku}",
            endpoint=orders.put_sku,
            name="put_sku",
            group="Orders",
            summary="Put stock up for sale",
            description=(
                "`stock` is the total: `available` is what is neither reserved nor sold. It may be raised at any time, "
                "and lowered to what is reserved and sold."
            ),
            need=Need.WRITE,
            parameters=(SKU,),
            body=SkuRequest,
            body_examples=examples.STOCKS,
            answers={200: Answer(description="It is now like this.", types=(SkuView,), example=examples.STOCKED)},
            own_problems=("sku_invalid", "stock_invalid", "stock_too_low", "in_flight", "outcome_unknown"),
        ),
        Route(
            method="GET",
            path="/v1/skus/{sku}",
            endpoint=orders.read_sku,
            name="read_sku",
            group="Orders",
            summary="Read a stock",
            description="What there is of a SKU now.",
            need=Need.READ,
            parameters=(SKU,),
            answers={200: Answer(description="The stock.", types=(SkuView,), example=examples.STOCKED)},
            own_problems=("sku_unknown",),
        ),
    )
