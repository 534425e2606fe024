"""The part of the route table that is about accounts."""

from typing import Final

from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.parameters import ACCOUNT_ID, AT, LIMIT, NUMBERED, cursor
from tallystick.http.route import Answer, Route
from tallystick.ledger.account.store import AccountView
from tallystick.ledger.account.views import AccountPage, AccountRequest, Accounts, EntryPage, PastBalance

_ACCOUNT_PROBLEMS: Final = ("account_invalid", "currency_unknown", "floor_invalid", "limits_invalid")


def account_routes(accounts: Accounts) -> tuple[Route, ...]:
    """Those of accounts."""
    return (
        Route(
            method="PUT",
            path="/v1/accounts/{id}",
            endpoint=accounts.put,
            name="put_account",
            group="Accounts",
            summary="Make or change an account",
            description=(
                "Makes the account, or gives it this floor and these velocity limits; what is left out "
                "returns to its default. The currency never changes. An operator may make accounts with floor 0 and "
                "no limits; what else bounds an account is an administrator's to say."
            ),
            need=Need.WRITE,
            parameters=(ACCOUNT_ID,),
            body=AccountRequest,
            body_examples=examples.ACCOUNTS,
            answers={
                200: Answer(description="It was there; it is now like this.", types=(AccountView,)),
                201: Answer(description="It was made.", types=(AccountView,), example=examples.ACCOUNT),
            },
            own_problems=(
                *_ACCOUNT_PROBLEMS,
                "account_reserved",
                "currency_mismatch",
                "floor_above_balance",
                "in_flight",
                "outcome_unknown",
            ),
        ),
        Route(
            method="GET",
            path="/v1/accounts/{id}",
            endpoint=accounts.read,
            name="read_account",
            group="Accounts",
            summary="Read an account, or its balance at a moment",
            description="With `at`, the balance and the number of entries at the end of that moment.",
            need=Need.READ,
            parameters=(ACCOUNT_ID, AT),
            answers={
                200: Answer(description="The account.", types=(AccountView, PastBalance), example=examples.ACCOUNT)
            },
            own_problems=("account_invalid", "account_unknown"),
        ),
        Route(
            method="GET",
            path="/v1/accounts",
            endpoint=accounts.list,
            name="list_accounts",
            group="Accounts",
            summary="List accounts",
            description="This tenant's accounts, by id.",
            need=Need.READ,
            parameters=(cursor({"$ref": "#/components/schemas/AccountId"}), LIMIT),
            answers={200: Answer(description="A page.", types=(AccountPage,), example=examples.ACCOUNT_PAGE)},
        ),
        Route(
            method="GET",
            path="/v1/accounts/{id}/entries",
            endpoint=accounts.entries,
            name="list_entries",
            group="Accounts",
            summary="List an account's entries",
            description="Newest first, each with the balance after it. Pages do not shift.",
            need=Need.READ,
            parameters=(ACCOUNT_ID, NUMBERED, LIMIT),
            answers={200: Answer(description="A page.", types=(EntryPage,), example=examples.ENTRY_PAGE)},
            own_problems=("account_invalid", "account_unknown"),
        ),
    )
