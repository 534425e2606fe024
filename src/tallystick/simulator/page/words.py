"""What the page says in words: how to point a client at a dialect, what can happen to an object, when faults strike."""

from collections.abc import Mapping
from typing import Final

import msgspec

from tallystick.simulator.catalogue import OPERATIONS, Stage

__all__ = ["ACTIONS", "OPERATIONS", "POINTING", "STAGES"]

# What `act` of each dialect takes, by the kind of the object, and what it does.
ACTIONS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "stripe": {
        "transfer": {"reverse": "take it back"},
        "payout": {"send": "on its way", "pay": "paid", "fail": "fails, even when paid"},
        "refund": {"succeed": "done", "fail": "fails, even when done"},
        "payment_intent": {"succeed": "the customer pays", "fail": "declined"},
    },
    "adyen": {
        "transfer": {
            "authorise": "accepted",
            "book": "booked",
            "refuse": "refused",
            "fail": "fails, even when booked",
            "return": "the other bank gives it back",
        },
        "refund": {
            "succeed": "done",
            "refuse": "refused",
            "fail": "fails after it was done",
            "return": "the bank gives it back",
        },
        "charge": {"succeed": "the customer pays", "fail": "refused"},
    },
    "square": {
        "charge": {
            "succeed": "a pending one completes",
            "fail": "a pending one fails",
            "expire": "an approved one is cancelled",
            "pay": "paid out to the seller",
        },
        "refund": {"succeed": "done", "refuse": "rejected", "fail": "fails, even when done"},
        "payout": {"pay": "paid", "fail": "fails"},
    },
    "wise": {
        "transfer": {
            "convert": "funds converted",
            "send": "sent",
            "bounce": "sent, and bounces back",
            "refund": "a bounced one is refunded",
            "expire": "an unfunded one is cancelled",
            "roll_back": "back to processing",
            "refuse": "cancelled by Wise",
        },
    },
}


class StageWords(msgspec.Struct, frozen=True):
    """A heading of the catalogue, and what it means for whoever sent the call."""

    title: str
    meaning: str


STAGES: Final[Mapping[Stage, StageWords]] = {
    Stage.BEFORE_KEYS: StageWords(
        "Before anything happens",
        "Struck before the key is looked at: nothing moves and nothing is remembered, so the same key may be sent "
        "again. Only forget_key goes on: it makes a repeated call move money again.",
    ),
    Stage.BEFORE_EFFECT: StageWords(
        "Instead of the effect",
        "Nothing moves, and the answer is kept: the same key gets it again, where the provider keeps such answers.",
    ),
    Stage.AFTER_EFFECT: StageWords(
        "Done, and the wrong answer is kept",
        "The money moved, the answer says otherwise, and the same key gets that answer again. Only the books know.",
    ),
    Stage.ANSWER: StageWords(
        "Done, and this answer is wrong",
        "The money moved, and only this one answer is nonsense. The same key, sent again, gets the true one.",
    ),
    Stage.WIRE: StageWords(
        "Done, and the answer is lost",
        "The money moved, and the connection breaks or stalls. The same key, sent again, gets the true answer.",
    ),
    Stage.DELAY: StageWords("Late", "It happens as asked, but later than the client may be willing to wait."),
    Stage.LATER: StageWords(
        "Good now, bad later",
        "The answer is true and turns bad as the simulated clock goes on: move it forward to see it.",
    ),
    Stage.WEBHOOK: StageWords(
        "Webhooks",
        "Strikes when an event is sent, so the provider needs a webhook address first. The operation is a part of "
        "the event's type, or * for all.",
    ),
}


class Pointing(msgspec.Struct, frozen=True):
    """How a client is pointed at a dialect; `{url}` stands for its address."""

    title: str
    environment: str
    package: str
    code: str


POINTING: Final[Mapping[str, Pointing]] = {
    "stripe": Pointing(
        "Stripe",
        "TALLY_STRIPE_API_KEY=sk_test_anything\nTALLY_STRIPE_API_BASE={url}",
        "The official stripe package",
        'client = stripe.StripeClient("sk_test_anything", base_addresses={{"api": "{url}"}})',
    ),
    "adyen": Pointing(
        "Adyen",
        "TALLY_ADYEN_API_KEY=anything\nTALLY_ADYEN_API_BASE={url}/checkout/v72\n"
        "TALLY_ADYEN_TRANSFER_API_BASE={url}/btl/v4\n"
        "TALLY_ADYEN_MERCHANT_ACCOUNT=Shop\nTALLY_ADYEN_BALANCE_ACCOUNT=BA1",
        "The official Adyen package",
        'adyen.client.xapikey = "anything"\n'
        'adyen.client.platform = "test"\n'
        'adyen.checkout.payments_api.baseUrl = "{url}/checkout/v72"\n'
        'adyen.checkout.modifications_api.baseUrl = "{url}/checkout/v72"\n'
        'adyen.transfers.transfers_api.baseUrl = "{url}/btl/v4"',
    ),
    "square": Pointing(
        "Square",
        "TALLY_SQUARE_API_KEY=anything\nTALLY_SQUARE_API_BASE={url}\nTALLY_SQUARE_LOCATION_ID={location}",
        "The official squareup package",
        'client = Square(token="anything", base_url="{url}")',
    ),
    "wise": Pointing(
        "Wise",
        "TALLY_WISE_API_KEY=anything\nTALLY_WISE_API_BASE={url}\nTALLY_WISE_PROFILE_ID={profile}",
        "Any HTTP client: Wise has no package",
        "curl -H 'Authorization: Bearer anything' {url}/v1/profiles",
    ),
}
