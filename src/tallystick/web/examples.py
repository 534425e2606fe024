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
