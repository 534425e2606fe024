"""Examples in the documentation. A test sends the requests and compares the answers' shape."""

from typing import Any, Final

OPERATIONS: Final[dict[str, dict[str, Any]]] = {
    "transfer": {
        "kind": "transfer",
        "debit": "amber:dev_1",
        "credit": "amber:dev_2",
        "amount_micros": 5_000_000,
        "currency": "USD",
        "memo": "invoice 17",
    },
    "topup": {
        "kind": "topup",
        "account": "amber:dev_1",
        "source": "outside:bank",
        "amount_micros": 20_000_000,
        "currency": "USD",
    },
    "post": {
        "kind": "post",
        "legs": [
            {"account": "amber:dev_1", "amount_micros": -1_000_000, "currency": "USD"},
            {"account": "amber:dev_2", "amount_micros": 900_000, "currency": "USD"},
            {"account": "amber:fees", "amount_micros": 100_000, "currency": "USD"},
        ],
    },
    "refund": {"kind": "refund", "transaction": "tx_00112233445566778899aabbccddeeff"},
}

TRANSACTION: Final[dict[str, Any]] = {
    "id": "tx_00112233445566778899aabbccddeeff",
    "idempotency_key": "invoice-17",
    "kind": "transfer",
    "at": "2026-01-31T12:00:00.000000Z",
    "entries": [
        {
            "account": "amber:dev_1",
            "amount_micros": -5_000_000,
            "currency": "USD",
            "balance_micros": 15_000_000,
            "number": 2,
        },
        {
            "account": "amber:dev_2",
            "amount_micros": 5_000_000,
            "currency": "USD",
            "balance_micros": 5_000_000,
            "number": 1,
        },
    ],
    "memo": "invoice 17",
    "author": "billing/tsk_AbCd1234",
}

PROBLEM: Final[dict[str, Any]] = {
    "type": "/docs#insufficient_funds",
    "title": "Insufficient funds",
    "status": 402,
    "detail": "amber:dev_1 holds 3.20 USD and 5.00 USD was asked for.",
    "code": "insufficient_funds",
    "money": "No money moved.",
    "remedy": "Top the account up, then send the same request with the same key.",
}

BATCH: Final[dict[str, dict[str, Any]]] = {
    "two transfers": {
        "operations": [
            {**OPERATIONS["transfer"], "idempotency_key": "invoice-17"},
            {**OPERATIONS["transfer"], "memo": "invoice 18", "idempotency_key": "invoice-18"},
        ]
    }
}

BATCH_OUTCOMES: Final[dict[str, Any]] = {
    "outcomes": [
        {"status": "committed", "transaction": TRANSACTION},
        {"status": "rejected", "problem": PROBLEM},
    ]
}

ACCOUNTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"currency": "USD"},
    "boundary": {"currency": "USD", "floor_micros": None},
    "with a velocity limit": {
        "currency": "USD",
        "limits": [{"window_seconds": 3600, "max_count": 10, "max_sum_micros": 100_000_000}],
    },
}

ACCOUNT: Final[dict[str, Any]] = {
    "id": "amber:dev_1",
    "currency": "USD",
    "floor_micros": 0,
    "balance_micros": 15_000_000,
    "entries": 2,
    "created_at": "2026-01-30T09:00:00Z",
    "limits": [],
}

ACCOUNT_PAGE: Final[dict[str, Any]] = {
    "accounts": [{name: value for name, value in ACCOUNT.items() if name != "limits"}],
    "next": "amber:dev_1",
}

ENTRY_PAGE: Final[dict[str, Any]] = {
    "entries": [
        {
            "number": 2,
            "transaction": TRANSACTION["id"],
            "amount_micros": -5_000_000,
            "balance_micros": 15_000_000,
            "at": "2026-01-31T12:00:00Z",
        }
    ],
    "next": None,
}

SETTLEMENTS: Final[dict[str, dict[str, Any]]] = {
    "payout": {
        "attribution_id": "bounty-42",
        "squad_id": "amber",
        "gross_micros": 12_340_000,
        "currency": "EUR",
        "destination": "acct_1AmberSquad",
        "provider": "simulator",
    },
    "with the provider of the settings": {
        "attribution_id": "bounty-43",
        "squad_id": "amber",
        "gross_micros": 7_500_000,
        "currency": "EUR",
        "destination": "acct_1AmberSquad",
    },
}

SETTLEMENT: Final[dict[str, Any]] = {
    "id": "st_00112233445566778899aabbccddeeff",
    "status": "pending",
    "attribution_id": "bounty-42",
    "squad_id": "amber",
    "gross_micros": 12_340_000,
    "fee_micros": 617_000,
    "net_micros": 11_723_000,
    "amount_micros": 11_720_000,
    "residue_micros": 3_000,
    "currency": "EUR",
    "provider": "simulator",
    "destination": "acct_1AmberSquad",
    "idempotency_key": "9f" * 32,
    "generation": 0,
    "transfer_id": None,
    "reason": None,
    "tries": 0,
    "created_at": "2026-01-31T12:00:00.000000Z",
    "changed_at": "2026-01-31T12:00:00.000000Z",
}

_DISPUTED: Final[dict[str, Any]] = {
    **SETTLEMENT,
    "status": "disputed",
    "transfer_id": "tr_1AmberPaid",
    "reason": "The squad has not received it.",
    "changed_at": "2026-02-03T09:30:00.000000Z",
}

SETTLEMENT_DETAIL: Final[dict[str, Any]] = {
    **_DISPUTED,
    "processing_since": "2026-01-31T12:00:01.000000Z",
    "claimed_at": "2026-01-31T12:00:01.000000Z",
    "claimed_by": "worker-1:4711",
    "claim_number": 2,
    "due_at": "2026-01-31T12:05:01.000000Z",
    "asks_first": False,
    "attempts": [
        {
            "generation": 0,
            "number": 1,
            "idempotency_key": SETTLEMENT["idempotency_key"],
            "account": "acct_1Platform",
            "sent_at": "2026-01-31T12:00:01.000000Z",
            "not_after": "2026-01-31T12:00:11.000000Z",
            "answered_at": "2026-01-31T12:00:02.000000Z",
            "answer": "done",
            "code": None,
            "provider_id": "tr_1AmberPaid",
            "exchanges": [
                {
                    "asked": "POST /v1/transfers",
                    "status": 200,
                    "request_id": "req_1Amber",
                    "said": '{"id":"tr_1Amber..."}',
                }
            ],
        }
    ],
    "events": [
        {
            "at": "2026-02-03T09:30:00.000000Z",
            "what": "disputed",
            "by": "anna/tsk_AbCdEfGh",
            "body": {
                "subject": SETTLEMENT["id"],
                "action": "dispute",
                "reason": "The squad has not received it.",
                "evidence": "Ticket 4711: bank statement of 2 February.",
            },
        }
    ],
}

SETTLEMENT_PAGE: Final[dict[str, Any]] = {"settlements": [SETTLEMENT], "next": None}

SETTLEMENT_BATCH: Final[dict[str, dict[str, Any]]] = {
    "two payouts": {
        "settlements": [
            {**SETTLEMENTS["payout"], "idempotency_key": "settle-bounty-42"},
            {**SETTLEMENTS["with the provider of the settings"], "idempotency_key": "settle-bounty-43"},
        ]
    }
}

SETTLEMENT_OUTCOMES: Final[dict[str, Any]] = {
    "outcomes": [
        {"status": "created", "settlement": SETTLEMENT},
        {
            "status": "rejected",
            "problem": {
                "type": "/docs#net_not_positive",
                "title": "The fee leaves nothing to pay",
                "status": 409,
                "detail": "Of 0.50 EUR the platform's fee takes 0.50 EUR: nothing would be left to pay.",
                "code": "net_not_positive",
                "money": "No money moved.",
                "remedy": "Settle a larger amount, or have an administrator change the tenant's fee.",
            },
        },
    ]
}

DISPUTES: Final[dict[str, dict[str, Any]]] = {
    "not received": {
        "reason": "The squad has not received it.",
        "evidence": "Ticket 4711: bank statement of 2 February.",
    }
}

RESOLUTIONS: Final[dict[str, dict[str, Any]]] = {
    "confirm": {
        "resolution": "confirm",
        "reason": "It arrived after all.",
        "evidence": "The provider's dashboard shows it as paid on 3 February.",
        "transfer_id": "tr_1AmberPaid",
    },
    "write off": {
        "resolution": "write_off",
        "reason": "It came back.",
        "evidence": "The provider's dashboard shows it as returned: account closed.",
    },
    "retry": {
        "resolution": "retry",
        "reason": "The squad has opened a new account.",
        "evidence": "Ticket 4711: confirmed by telephone.",
    },
}

APPROVAL: Final[dict[str, Any]] = {
    "id": "ap_0123456789abcdef0123456789abcdef",
    "settlement": SETTLEMENT["id"],
    "order": None,
    "action": "new_generation",
    "generation": 1,
    "reason": "The squad has opened a new account.",
    "evidence": "Ticket 4711: confirmed by telephone.",
    "asked_by": "anna/tsk_AbCdEfGh",
    "asked_at": "2026-02-04T10:00:00.000000Z",
    "decision": None,
    "decided_by": None,
    "decided_at": None,
    "decided_why": None,
}

REFUND_APPROVAL: Final[dict[str, Any]] = {
    **APPROVAL,
    "settlement": None,
    "order": "or_00112233445566778899aabbccddeeff",
    "action": "refund_keep",
    "generation": 0,
    "reason": "pi_1 of or_00112233445566778899aabbccddeeff stays with the tenant.",
    "evidence": '{"order":"or_00112233445566778899aabbccddeeff","payment_intent_id":"pi_1","refund_id":null,'
    '"provider_says":"the payment is succeeded (moved)","part":null,"evidence":null}',
}

OPEN_APPROVALS: Final[dict[str, Any]] = {"approvals": [APPROVAL], "more": False}

REVIEW: Final[dict[str, Any]] = {"settlement": _DISPUTED, "approval": None}

DECISIONS: Final[dict[str, dict[str, Any]]] = {
    "approve": {"decision": "approve", "reason": "The refusal is final, and the new account was confirmed."},
    "reject": {"decision": "reject", "reason": "The account is still closed."},
}

AUTHORITY_POLICIES: Final[dict[str, dict[str, Any]]] = {
    "ceilings, and a second person": {
        "ceilings": [
            {
                "currency": "EUR",
                "payout_micros": 5_000_000_000,
                "day_micros": 50_000_000_000,
                "second_person_micros": 1_000_000_000,
            }
        ]
    },
    "known destinations, after a day": {"known_destinations": True, "waiting_seconds": 86_400},
    "no bound": {},
}

AUTHORITY_POLICY: Final[dict[str, Any]] = {
    "known_destinations": False,
    "waiting_seconds": 0,
    **AUTHORITY_POLICIES["ceilings, and a second person"],
    "changed_by": "anna/tsk_AbCdEfGh",
    "changed_at": "2026-01-30T09:00:00Z",
}

DESTINATIONS: Final[dict[str, dict[str, Any]]] = {
    "make known": {"destination": "acct_good"},
    "at a provider": {"destination": "acct_good", "provider": "simulator"},
}

DESTINATION: Final[dict[str, Any]] = {
    "provider": "simulator",
    "destination": "acct_good",
    "added_by": "anna/tsk_AbCdEfGh",
    "added_at": "2026-01-30T09:00:00Z",
    "usable_at": "2026-01-31T09:00:00Z",
    "withdrawn_at": None,
}

DESTINATION_PAGE: Final[dict[str, Any]] = {"destinations": [DESTINATION], "next": None}

FEES: Final[dict[str, dict[str, Any]]] = {
    "5 %, at least 0.50": {"percent_ppm": 50_000, "minimum_micros": 500_000},
    "2.9 % and 0.30": {"percent_ppm": 29_000, "fixed_micros": 300_000},
}

FEE_POLICY: Final[dict[str, Any]] = {
    "currency": "EUR",
    "percent_ppm": 50_000,
    "fixed_micros": 0,
    "minimum_micros": 500_000,
    "changed_by": "anna/tsk_AbCdEfGh",
    "changed_at": "2026-01-30T09:00:00Z",
}

FEE_POLICIES: Final[dict[str, Any]] = {"policies": [FEE_POLICY]}

ORDERS: Final[dict[str, dict[str, Any]]] = {
    "one lamp": {"sku": "lamp-brass", "quantity": 1, "amount_micros": 25_000_000, "currency": "EUR"},
}

ORDER: Final[dict[str, Any]] = {
    "id": "or_00112233445566778899aabbccddeeff",
    "status": "PENDING",
    "sku": "lamp-brass",
    "quantity": 1,
    "amount_micros": 25_000_000,
    "currency": "EUR",
    "reservation_token": "rt_ffeeddccbbaa99887766554433221100",
    "expires_at": "2026-01-31T12:10:00.000000Z",
    "created_at": "2026-01-31T12:00:00.000000Z",
    "changed_at": "2026-01-31T12:00:00.000000Z",
}

CANCELLED_ORDER: Final[dict[str, Any]] = {
    **ORDER,
    "status": "CANCELLED",
    "changed_at": "2026-01-31T12:05:00.000000Z",
}

STOCKS: Final[dict[str, dict[str, Any]]] = {"a thousand": {"stock": 1_000}}

STOCKED: Final[dict[str, Any]] = {
    "sku": "lamp-brass",
    "stock": 1_000,
    "reserved": 1,
    "sold": 0,
    "available": 999,
    "backordered": 0,
}

PAYMENTS: Final[dict[str, dict[str, Any]]] = {
    "the customer brings his card later": {"reservation_token": "rt_ffeeddccbbaa99887766554433221100"},
    "with a card's token": {
        "reservation_token": "rt_ffeeddccbbaa99887766554433221100",
        "payment_method": "pm_card_visa",
    },
}

PAYMENT: Final[dict[str, Any]] = {
    "order_id": "or_00112233445566778899aabbccddeeff",
    "status": "AWAITING_CUSTOMER",
    "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
    "client_secret": "pi_3Q9yZ2eZvKYlo2C0_secret_x",
    "attempts": 1,
    "reason": None,
}

PENDING_PAYMENT: Final[dict[str, Any]] = {
    **PAYMENT,
    "status": "PENDING",
    "payment_intent_id": None,
    "client_secret": None,
}

ORDER_IN_PAYMENT: Final[dict[str, Any]] = {
    **ORDER,
    "payment": {
        "status": "AWAITING_CUSTOMER",
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "attempts": 1,
        "reason": None,
    },
}

REFUNDS: Final[dict[str, dict[str, Any]]] = {
    "a part": {"amount_micros": 5_000_000, "reason": "one lamp came broken"},
    "all that is left, and sell it again": {"reason": "sent back unopened", "restock": True},
}

REFUND: Final[dict[str, Any]] = {
    "order_id": "or_00112233445566778899aabbccddeeff",
    "status": "COMPLETED",
    "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
    "refund_id": "re_3Q9yZ2eZvKYlo2C1",
    "amount_micros": 5_000_000,
    "currency": "EUR",
    "reason": "one lamp came broken",
    "restock": False,
    "created_at": "2026-02-02T09:15:00.000000Z",
}

PENDING_REFUND: Final[dict[str, Any]] = {**REFUND, "status": "PENDING", "refund_id": None}

PAYMENT_RESOLUTIONS: Final[dict[str, dict[str, Any]]] = {
    "it was never made": {
        "outcome": "never_charged",
        "evidence": "Dashboard, payments of 31 January by metadata: none with this key. Seen by K. on 2 February.",
    },
    "it was made": {
        "outcome": "charged",
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "evidence": "Dashboard: pi_3Q9yZ2eZvKYlo2C0, 25.00 EUR, succeeded on 31 January.",
    },
}

REFUND_DECISIONS: Final[dict[str, dict[str, Any]]] = {
    "give it back": {"payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0", "decision": "refund"},
    "it may stay": {"payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0", "decision": "keep"},
    "it went back already": {
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "decision": "confirm",
        "refund_id": "re_3Q9yZ2eZvKYlo2C0",
    },
    "a part went back already": {
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "part": "order-4711-broken-lamp",
        "decision": "confirm",
        "refund_id": "re_3Q9yZ2eZvKYlo2C1",
    },
    "a part did not go back": {
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "part": "order-4711-broken-lamp",
        "decision": "failed",
        "evidence": "Customer Area: the payment has no refund. Seen by K. on 2 February.",
    },
}

REFUNDED_ORDER: Final[dict[str, Any]] = {
    **ORDER,
    "payment": {"status": "COMPLETED", "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0", "attempts": 1, "reason": None},
    "status": "CANCELLED_BY_SWEEPER",
    "changed_at": "2026-01-31T12:10:31.000000Z",
    "refund": {
        "status": "COMPLETED",
        "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0",
        "refund_id": "re_3Q9yZ2eZvKYlo2C0",
        "amount_micros": 25_000_000,
        "currency": "EUR",
        "reason": "late",
        "created_at": "2026-01-31T12:11:55.000000Z",
        "completed_at": "2026-01-31T12:11:56.000000Z",
        "part": None,
        "waits_for_person": None,
    },
}

CHECKOUT_POLICIES: Final[dict[str, dict[str, Any]]] = {
    "deliver late, and let a person look": {"late": "backorder", "other_amount": "review"},
}

CHECKOUT_POLICY: Final[dict[str, Any]] = {
    "late": "backorder",
    "other_amount": "review",
    "changed_by": "anna/tsk_AbCdEfGh",
    "changed_at": "2026-01-30T09:00:00Z",
}

# As Stripe writes them, and the simulator after it.
WEBHOOK: Final = {
    "id": "evt_1",
    "object": "event",
    "type": "transfer.reversed",
    "created": 1_793_000_000,
    "data": {
        "object": {"id": "tr_1", "object": "transfer", "amount": 1_250, "currency": "eur", "created": 1_792_000_000}
    },
}

ORDER_STATUS: Final[dict[str, Any]] = {
    "id": "or_00112233445566778899aabbccddeeff",
    "status": "PAID",
    "payment": {"status": "COMPLETED", "payment_intent_id": "pi_3Q9yZ2eZvKYlo2C0", "attempts": 1, "reason": None},
    "refund": None,
    "changed_at": "2026-01-31T12:05:00.000000Z",
    "version": "1f0c5b9a3d2e4876",
}
