"""The catalogue of faults, as data: what each is called, whom it can strike, when, and why it is here.

`source` names the section of docs/providers.md the fault comes from; "wire" is the Internet itself, which belongs
to no provider.
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

ALL: Final = ("stripe", "adyen", "square", "wise")
# The words of `Call.operation`, by dialect: those that have a key, and the others. A plan that names another word
# would never strike.
KEYED: Final = MappingProxyType(
    {
        "stripe": (
            "charge",
            "refund",
            "transfer",
            "payout",
            "reversal",
            "confirm",
            "capture",
            "cancel",
            "update",
            "onboard",
        ),
        "adyen": ("charge", "refund", "transfer", "approve", "return", "cancel"),
        "square": ("charge", "refund"),
        "wise": ("transfer",),
    }
)
KEYLESS: Final = MappingProxyType(
    {
        "stripe": ("lookup", "list", "events", "balance"),
        "adyen": ("lookup", "list"),
        "square": ("complete", "cancel", "lookup", "list", "events"),
        "wise": ("quote", "recipient", "fund", "cancel", "lookup", "list", "subscribe"),
    }
)
# Over all dialects, what moves money first.
OPERATIONS: Final = tuple(dict.fromkeys(word for words in (KEYED, KEYLESS) for name in ALL for word in words[name]))
MOVING: Final = ("charge", "refund", "transfer", "payout", "fund", "reversal")
ANY: Final = ("*",)
# Ten years of seconds: no test waits longer, and every calendar holds it.
_LONGEST: Final = 315_360_000


class Stage(StrEnum):
    """When a fault strikes."""

    BEFORE_KEYS = "before the key layer: nothing happens, nothing is stored"
    BEFORE_EFFECT = "instead of the effect: the answer is stored as the key's"
    AFTER_EFFECT = "after the effect: another answer than the true one is stored as the key's"
    ANSWER = "after the effect, which is stored truly: only this answer is wrong"
    WIRE = "after the effect, which is stored truly: only this answer's bytes are"
    DELAY = "in time: the effect or its answer is late"
    LATER = "the answer is good, and turns bad later"
    WEBHOOK = "when an event is sent"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One way to misbehave.

    `argument` is what it may be given in brackets, with its unit, and `default` what it is otherwise; with a default
    it is a number up to `most`, and a whole one where `whole` says so. `needs_key`: it strikes only operations that
    have a key. `actions` of a LATER fault: what the dialect does by itself, and after how many seconds.
    """

    name: str
    stage: Stage
    meaning: str
    source: str
    dialects: tuple[str, ...] = ALL
    operations: tuple[str, ...] = ANY
    argument: str = ""
    default: str = ""
    most: int = _LONGEST
    whole: bool = False
    needs_key: bool = False
    actions: tuple[tuple[str, float], ...] = ()


_DAY: Final = 86_400.0

FAULTS: Final = (
    Fault(
        name="refused",
        stage=Stage.BEFORE_EFFECT,
        meaning="the provider says no, for good",
        source="2.4",
        operations=MOVING,
        argument="the provider's error code",
    ),
    Fault(
        name="error_500_no_object",
        stage=Stage.BEFORE_EFFECT,
        meaning="500, stored; nothing was made",
        source="2.2",
    ),
    Fault(
        name="error_500_object_later",
        stage=Stage.BEFORE_EFFECT,
        meaning="500, stored; the object appears later and only a webhook tells",
        source="2.2",
        operations=MOVING,
        argument="seconds until it appears",
        default="3600",
    ),
    Fault(
        name="execute_then_500",
        stage=Stage.AFTER_EFFECT,
        meaning="500, stored; the object exists",
        source="2.2",
    ),
    Fault(name="drop_before", stage=Stage.BEFORE_KEYS, meaning="closed unread: nothing happened", source="wire"),
    Fault(
        name="rate_limited",
        stage=Stage.BEFORE_KEYS,
        meaning="429 of the limiter",
        source="2.4; 4; 5",
        argument="whole seconds for Retry-After",
        default="1",
        whole=True,
    ),
    Fault(
        name="lock_timeout",
        stage=Stage.BEFORE_KEYS,
        meaning="429: another request holds the object",
        source="2.4",
        dialects=("stripe",),
    ),
    Fault(name="unauthorized", stage=Stage.BEFORE_KEYS, meaning="401", source="2.4"),
    Fault(name="forbidden", stage=Stage.BEFORE_KEYS, meaning="403", source="2.4"),
    Fault(
        name="in_flight",
        stage=Stage.BEFORE_KEYS,
        meaning="the key is said to be running; nothing is",
        source="2.2; 3",
        operations=tuple(dict.fromkeys(word for words in KEYED.values() for word in words)),
        needs_key=True,
    ),
    Fault(
        name="temporary_error",
        stage=Stage.BEFORE_KEYS,
        meaning="503 TEMPORARY_ERROR: to be sent again with the same key",
        source="4, Retryable codes",
        dialects=("square",),
    ),
    Fault(
        name="error_424",
        stage=Stage.BEFORE_KEYS,
        meaning="424: something the provider depends on failed",
        source="2.4",
        dialects=("stripe",),
    ),
    Fault(name="redirect", stage=Stage.BEFORE_KEYS, meaning="302 to another host", source="wire"),
    *(
        Fault(
            name=f"gateway_{status}",
            stage=Stage.BEFORE_KEYS,
            meaning=f"{status} from in front of the provider: nothing happened",
            source="2.2",
        )
        for status in (502, 503, 504)
    ),
    *(
        Fault(
            name=f"gateway_{status}_after",
            stage=Stage.ANSWER,
            meaning=f"{status} from in front of the provider, which did it",
            source="2.2",
        )
        for status in (502, 503, 504)
    ),
    Fault(
        name="forget_key",
        stage=Stage.BEFORE_KEYS,
        meaning="the key is forgotten, and the call executes again",
        source="2.2",
        # Wise knows a repeat by the transfer itself, which no horizon takes away.
        dialects=("stripe", "adyen", "square"),
        operations=tuple(dict.fromkeys(word for words in KEYED.values() for word in words)),
        needs_key=True,
    ),
    Fault(name="html_200", stage=Stage.ANSWER, meaning="200 with a page of HTML", source="2.3; 3, SDK trap"),
    Fault(name="empty_200", stage=Stage.ANSWER, meaning="200 with an empty body", source="2.3"),
    Fault(name="wrong_type_200", stage=Stage.ANSWER, meaning="200 with JSON of another kind", source="2.3"),
    Fault(
        name="huge_body",
        stage=Stage.ANSWER,
        meaning="200 with far more bytes than an answer has",
        source="wire",
        argument="megabytes",
        default="32",
        most=64,
    ),
    Fault(name="execute_then_drop", stage=Stage.WIRE, meaning="done, then closed without a byte", source="2.4"),
    Fault(name="execute_then_reset", stage=Stage.WIRE, meaning="done, then the connection is reset", source="2.4"),
    Fault(name="cut_body", stage=Stage.WIRE, meaning="done, then closed in the middle of the answer", source="2.3"),
    Fault(
        name="trickle",
        stage=Stage.WIRE,
        meaning="done, and the answer comes in small pieces",
        source="wire",
        argument="seconds",
        default="5",
    ),
    Fault(name="hang", stage=Stage.WIRE, meaning="done, and the answer never comes", source="2.3"),
    Fault(
        name="slow_before",
        stage=Stage.DELAY,
        meaning="the effect is late, and comes even when the client has left",
        source="4, Hazard of that tool",
        argument="seconds",
        default="5",
    ),
    Fault(
        name="late_create",
        stage=Stage.DELAY,
        meaning="slow_before: the payment is made after a cancel by its key found nothing",
        source="4, Hazard of that tool",
        dialects=("square",),
        operations=("charge",),
        argument="seconds",
        default="2",
    ),
    Fault(
        name="slow_after",
        stage=Stage.DELAY,
        meaning="done at once, the answer is late; a twin is told that the key is in flight",
        source="2.2",
        argument="seconds",
        default="5",
    ),
    Fault(
        name="error_703",
        stage=Stage.BEFORE_KEYS,
        meaning="503: the key store is down, transient",
        source="3, Idempotency store down",
        dialects=("adyen",),
    ),
    Fault(
        name="error_704",
        stage=Stage.BEFORE_KEYS,
        meaning="the key is in progress, transient",
        source="3, In flight / race",
        dialects=("adyen",),
    ),
    Fault(
        name="error_without_transient",
        stage=Stage.BEFORE_EFFECT,
        meaning="an error that does not allow a retry",
        source="3, Retry rule",
        dialects=("adyen",),
    ),
    Fault(
        name="fund_rejected",
        stage=Stage.BEFORE_KEYS,
        meaning="201 with status REJECTED: nothing was funded",
        source="5, Trap",
        dialects=("wise",),
        operations=("fund",),
        argument="the error code",
    ),
    Fault(
        name="accepted_then_refused",
        stage=Stage.LATER,
        meaning="202, then refused by webhook",
        source="3, Transfer statuses",
        dialects=("adyen",),
        operations=("transfer", "refund"),
        actions=(("refuse", 1.0),),
    ),
    Fault(
        name="paid_then_failed",
        stage=Stage.LATER,
        meaning="the payout is paid, and fails days later",
        source="2.8",
        dialects=("stripe",),
        operations=("payout",),
        actions=(("pay", _DAY), ("fail", 3 * _DAY)),
    ),
    Fault(
        name="reversed",
        stage=Stage.LATER,
        meaning="the transfer is taken back",
        source="2.5",
        dialects=("stripe",),
        operations=("transfer",),
        actions=(("reverse", _DAY),),
    ),
    Fault(
        name="returned",
        stage=Stage.LATER,
        meaning="booked, and given back by the other bank",
        source="3, Late failure",
        dialects=("adyen",),
        operations=("transfer",),
        actions=(("book", 60.0), ("return", 2 * _DAY)),
    ),
    Fault(
        name="bounced",
        stage=Stage.LATER,
        meaning="sent, and bounced days later",
        source="5, Not final",
        dialects=("wise",),
        operations=("transfer",),
        actions=(("bounce", 3 * _DAY),),
    ),
    Fault(
        name="refund_failed_later",
        stage=Stage.LATER,
        meaning="the refund fails after it looked done",
        source="2.7; 3, Refund; 4, Refund",
        dialects=("stripe", "adyen", "square"),
        operations=("refund",),
        actions=(("fail", _DAY),),
    ),
    Fault(name="webhook_lost", stage=Stage.WEBHOOK, meaning="never sent", source="2.11"),
    Fault(name="webhook_doubled", stage=Stage.WEBHOOK, meaning="sent twice", source="2.10"),
    Fault(name="webhook_reordered", stage=Stage.WEBHOOK, meaning="sent after the next one", source="2.10"),
    Fault(
        name="webhook_late",
        stage=Stage.WEBHOOK,
        meaning="sent days later",
        source="2.10",
        argument="seconds",
        default="259200",
    ),
    Fault(
        name="webhook_two_events",
        stage=Stage.WEBHOOK,
        meaning="two events with their own ids for one change",
        source="2.10",
        # The others' events have no id of their own.
        dialects=("stripe", "square"),
    ),
    Fault(name="webhook_forged", stage=Stage.WEBHOOK, meaning="also sent with a wrong signature", source="2.10"),
    Fault(
        name="webhook_other_endpoint",
        stage=Stage.WEBHOOK,
        meaning="also sent with the good signature of another endpoint's secret",
        source="2.10",
    ),
    Fault(
        name="webhook_stale",
        stage=Stage.WEBHOOK,
        meaning="signed long ago: a replay",
        source="2.10",
        # No other signature covers the time.
        dialects=("stripe",),
        argument="seconds",
        default="3600",
    ),
    Fault(
        name="webhook_future",
        stage=Stage.WEBHOOK,
        meaning="signed in the future: the clocks differ",
        source="2.10",
        dialects=("stripe",),
        argument="seconds",
        default="86400",
    ),
    Fault(
        name="webhook_two_signatures",
        stage=Stage.WEBHOOK,
        meaning="signed with an unknown secret and the good one, as while a secret is rolled",
        source="2.10",
        dialects=("stripe",),
    ),
)

CATALOGUE: Final = MappingProxyType({fault.name: fault for fault in FAULTS})
