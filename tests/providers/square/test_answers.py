"""Every error of Square's that is in the table, row by row; whatever is not in it is Unknown."""

from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from square.types.error_category import ErrorCategory
from square.types.error_code import ErrorCode

from tallystick.providers.classification import Row, Trouble, row_for
from tallystick.providers.http import Reply
from tallystick.providers.square.answers import TABLE, meaning
from tallystick.providers.words import Busy, Exchange, Refused, Unknown

EVIDENCE = (Exchange(asked="POST /v2/payments", status=0),)
CODES: tuple[str, ...] = get_args(get_args(ErrorCode)[0])
CATEGORIES: tuple[str, ...] = get_args(get_args(ErrorCategory)[0])


def errors(status: int, *faults: tuple[str, str]) -> Reply:
    body = {"errors": [{"category": category, "code": code, "detail": "Because."} for category, code in faults]}
    return Reply(status, {}, msgspec.json.encode(body))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.status}-{row.code}")
def test_each_row_is_reached_and_means_what_it_says(row: Row) -> None:
    reply = errors(row.status or 400, (row.type or "ODD", row.code or "ODD"))
    found = row_for(TABLE, Trouble(reply=reply, type=row.type or "ODD", code=row.code or "ODD"))
    assert found == row, "an earlier row hides it"
    answer = meaning(reply, EVIDENCE)
    match row.verdict:
        case "refused":
            assert isinstance(answer, Refused)
            assert answer.code == row.code
        case "busy" | "needs_person":
            assert isinstance(answer, Busy)
            assert answer.needs_person is (row.verdict == "needs_person")
        case "unknown" | "says_refused":
            assert isinstance(answer, Unknown)
            assert answer.server_error is (reply.status >= 500)
            assert answer.says_refused is (row.verdict == "says_refused")
    assert answer.evidence == EVIDENCE
    assert row.source.startswith("docs/providers.md ")


def test_the_table_names_no_code_or_category_that_square_does_not_have() -> None:
    assert {row.code for row in TABLE if row.code} <= set(CODES)
    assert {row.type for row in TABLE if row.type} <= set(CATEGORIES)


@given(
    status=st.integers(300, 599),
    category=st.one_of(st.sampled_from(CATEGORIES), st.text(max_size=20)),
    code=st.one_of(st.sampled_from(CODES), st.text(max_size=20)),
)
def test_what_no_row_names_is_unknown(status: int, category: str, code: str) -> None:
    reply = errors(status, (category, code))
    if row_for(TABLE, Trouble(reply=reply, type=category, code=code)) is None:
        assert isinstance(meaning(reply, EVIDENCE), Unknown)


@given(status=st.integers(500, 599), category=st.sampled_from(CATEGORIES), code=st.sampled_from(CODES))
def test_a_server_error_never_refuses_whatever_its_code(status: int, category: str, code: str) -> None:
    answer = meaning(errors(status, (category, code)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert answer.server_error


@example(status=402, body=b'{"x":' + b"[" * 100_000)
@given(status=st.integers(400, 599), body=st.binary(max_size=200))
def test_a_body_that_cannot_be_read_leaves_the_status_to_speak(status: int, body: bytes) -> None:
    answer = meaning(Reply(status, {}, body), EVIDENCE)
    assert isinstance(answer, Busy if status in {401, 403, 429} else Unknown)


@pytest.mark.parametrize(
    ("status", "category", "code"),
    [
        (400, "INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED"),
        (409, "INVALID_REQUEST_ERROR", "CONFLICT"),
        (409, "PAYMENT_METHOD_ERROR", "GENERIC_DECLINE"),
        (408, "API_ERROR", "REQUEST_TIMEOUT"),
        (400, "API_ERROR", "TEMPORARY_ERROR"),
        (400, "INVALID_REQUEST_ERROR", "BAD_REQUEST"),
        (400, "API_ERROR", "GENERIC_DECLINE"),
        (503, "API_ERROR", "SERVICE_UNAVAILABLE"),
    ],
)
def test_the_dangerous_ones_are_unknown(status: int, category: str, code: str) -> None:
    answer = meaning(errors(status, (category, code)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert answer.code == code


def test_several_errors_refuse_only_together() -> None:
    declined, wrong = ("PAYMENT_METHOD_ERROR", "CVV_FAILURE"), ("PAYMENT_METHOD_ERROR", "ADDRESS_VERIFICATION_FAILURE")
    assert isinstance(meaning(errors(400, declined, wrong), EVIDENCE), Refused)
    doubtful = meaning(errors(400, declined, ("API_ERROR", "TEMPORARY_ERROR")), EVIDENCE)
    assert isinstance(doubtful, Unknown)
    assert doubtful.code == "errors_disagree"


def test_an_empty_list_of_errors_says_nothing() -> None:
    assert isinstance(meaning(errors(400), EVIDENCE), Unknown)


def test_a_refusal_is_never_called_replayed() -> None:
    """Square does not mark what it answers from its store."""
    answer = meaning(errors(400, ("PAYMENT_METHOD_ERROR", "CARD_DECLINED")), EVIDENCE)
    assert isinstance(answer, Refused)
    assert answer.replayed is False


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("INVALID_REQUEST_ERROR", "BAD_REQUEST"),
        ("PAYMENT_METHOD_ERROR", "A_NEW_KIND_OF_DECLINE"),
        ("REFUND_ERROR", "A_NEW_KIND_OF_REFUND_DENIED"),
    ],
)
def test_a_code_that_is_not_listed_says_by_its_category_that_it_is_refused(category: str, code: str) -> None:
    answer = meaning(errors(400, (category, code)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert (answer.says_refused, answer.code) == (True, code)


def test_two_refusals_are_as_sure_as_the_less_sure_one() -> None:
    both = (("INVALID_REQUEST_ERROR", "VALUE_TOO_LONG"), ("INVALID_REQUEST_ERROR", "A_NEW_FAULT"))
    for faults in (both, both[::-1]):
        answer = meaning(errors(400, *faults), EVIDENCE)
        assert isinstance(answer, Unknown)
        assert (answer.says_refused, answer.code) == (True, "A_NEW_FAULT")


@pytest.mark.parametrize(
    ("status", "category", "code"),
    [
        (400, "INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED"),
        (400, "INVALID_REQUEST_ERROR", "CONFLICT"),
        (409, "INVALID_REQUEST_ERROR", "A_NEW_FAULT"),
        (408, "INVALID_REQUEST_ERROR", "A_NEW_FAULT"),
        (400, "RATE_LIMIT_ERROR", "RATE_LIMITED"),
        (400, "INVALID_REQUEST_ERROR", "RATE_LIMITED"),
        (400, "INVALID_REQUEST_ERROR", "REQUEST_TIMEOUT"),
        (400, "API_ERROR", "A_NEW_FAULT"),
        (500, "INVALID_REQUEST_ERROR", "A_NEW_FAULT"),
    ],
)
def test_keys_conflicts_limits_and_timeouts_refuse_nothing(status: int, category: str, code: str) -> None:
    answer = meaning(errors(status, (category, code)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert not answer.says_refused


@pytest.mark.parametrize("made", ["payment", "refund"])
def test_an_error_that_names_what_was_made_refuses_nothing(made: str) -> None:
    body = {"errors": [{"category": "INVALID_REQUEST_ERROR", "code": "BAD_REQUEST"}], made: {"id": "x"}}
    answer = meaning(Reply(400, {}, msgspec.json.encode(body)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert not answer.says_refused
