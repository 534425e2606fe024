"""Every error of Stripe's that is in the table, row by row; whatever is not in it is Unknown."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.providers.classification import Row, row_for
from tallystick.providers.http import Reply
from tallystick.providers.stripe.answers import TABLE, meaning, trouble
from tallystick.providers.words import Busy, Exchange, Refused, Unknown

EVIDENCE = (Exchange(asked="POST /v1/transfers", status=0),)


def error(status: int, *, kind: str = "", code: str = "", replayed: bool = False) -> Reply:
    body = {"error": {"type": kind or None, "code": code or None, "message": "Because."}}
    return Reply(status, {"idempotent-replayed": "true"} if replayed else {}, msgspec.json.encode(body))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.status}-{row.type}-{row.code}")
def test_each_row_is_reached_and_means_what_it_says(row: Row) -> None:
    reply = error(row.status or 400, kind=row.type or "", code=row.code or "")
    assert row_for(TABLE, trouble(reply)) == row, "an earlier row hides it"
    answer = meaning(reply, EVIDENCE)
    match row.verdict:
        case "refused":
            assert isinstance(answer, Refused)
        case "busy":
            assert isinstance(answer, Busy)
            assert not answer.needs_person
        case "needs_person":
            assert isinstance(answer, Busy)
            assert answer.needs_person
        case "unknown" | "says_refused":
            assert isinstance(answer, Unknown)
            assert answer.server_error is (reply.status >= 500)
            assert answer.says_refused is (row.verdict == "says_refused")
    assert answer.evidence == EVIDENCE
    assert row.source.startswith("docs/providers.md ")


@given(
    status=st.integers(300, 599),
    kind=st.sampled_from(["", "api_error", "card_error", "idempotency_error", "invalid_request_error", "odd"]),
    code=st.one_of(st.sampled_from([row.code for row in TABLE if row.code]), st.text(max_size=30)),
)
def test_what_no_row_names_is_unknown(status: int, kind: str, code: str) -> None:
    reply = error(status, kind=kind, code=code)
    if row_for(TABLE, trouble(reply)) is None:
        assert isinstance(meaning(reply, EVIDENCE), Unknown)


@given(status=st.integers(500, 599), code=st.sampled_from([row.code for row in TABLE if row.code]))
def test_a_server_error_never_refuses_whatever_its_code(status: int, code: str) -> None:
    """Stripe may roll it forward later."""
    answer = meaning(error(status, kind="card_error", code=code), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert answer.server_error


@example(status=402, body=b'{"x":' + b"[" * 100_000)
@given(status=st.integers(400, 599), body=st.binary(max_size=200))
def test_a_body_that_cannot_be_read_leaves_the_status_to_speak(status: int, body: bytes) -> None:
    answer = meaning(Reply(status, {}, body), EVIDENCE)
    if status in {401, 403, 429}:
        assert isinstance(answer, Busy)
    else:
        assert isinstance(answer, Unknown)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error(409, kind="invalid_request_error", code="idempotency_key_in_use"), "idempotency_key_in_use"),
        (error(400, kind="idempotency_error"), "idempotency_error"),
        (error(400, kind="invalid_request_error", code="rate_limit"), "rate_limit"),
        (error(400, kind="invalid_request_error", code="lock_timeout"), "lock_timeout"),
        (error(400, kind="api_error"), "api_error"),
        (error(408, kind="invalid_request_error"), "invalid_request_error"),
        (error(409, kind="invalid_request_error"), "invalid_request_error"),
        (error(409), "status_409"),
        (error(424), "status_424"),
    ],
)
def test_the_dangerous_ones_are_unknown(reply: Reply, code: str) -> None:
    """Of a key, a conflict, a lock, a limit or a timeout no type makes a refusal."""
    answer = meaning(reply, EVIDENCE)
    assert isinstance(answer, Unknown)
    assert answer.code == code
    assert not answer.says_refused


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error(400, kind="invalid_request_error"), "invalid_request_error"),
        (
            error(400, kind="invalid_request_error", code="insufficient_capabilities_for_transfer"),
            "insufficient_capabilities_for_transfer",
        ),
        (error(404, kind="invalid_request_error"), "invalid_request_error"),
    ],
)
def test_a_wrong_request_under_no_code_we_know_says_that_it_is_refused(
    reply: Reply, code: str, *, replayed: bool
) -> None:
    headers = {"idempotent-replayed": "true"} if replayed else {}
    answer = meaning(Reply(reply.status, headers, reply.body), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert (answer.says_refused, answer.replayed, answer.code) == (True, replayed, code)


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"message": None}, {}),
        ({"payment_intent": {"id": "pi_1", "status": "processing"}}, {}),
        ({"charge": "ch_1"}, {}),
        ({}, {"stripe-should-retry": "true"}),
    ],
)
def test_an_error_that_is_not_whole_or_names_what_was_made_refuses_nothing(
    fields: dict[str, object], headers: dict[str, str]
) -> None:
    body = {"error": {"type": "invalid_request_error", "message": "Because.", **fields}}
    answer = meaning(Reply(400, headers, msgspec.json.encode(body)), EVIDENCE)
    assert isinstance(answer, Unknown)
    assert not answer.says_refused


def test_a_refusal_from_the_store_says_so() -> None:
    """Only a replayed one is also the answer to an earlier send."""
    stored = meaning(error(402, kind="card_error", code="card_declined", replayed=True), EVIDENCE)
    fresh = meaning(error(402, kind="card_error", code="card_declined"), EVIDENCE)
    assert isinstance(stored, Refused)
    assert isinstance(fresh, Refused)
    assert (stored.replayed, fresh.replayed) == (True, False)


def test_a_stored_server_error_stays_unknown() -> None:
    assert isinstance(meaning(error(500, kind="api_error", replayed=True), EVIDENCE), Unknown)


def test_a_limit_waits_as_long_as_it_is_told() -> None:
    body = msgspec.json.encode({"error": {"code": "rate_limit", "message": "Slow down."}})
    answer = meaning(Reply(429, {"retry-after": "7"}, body), EVIDENCE)
    assert isinstance(answer, Busy)
    assert answer.after_seconds == 7


def test_should_retry_is_evidence_only() -> None:
    reply = error(500, kind="api_error")
    advised = Reply(reply.status, {"stripe-should-retry": "false"}, reply.body)
    assert meaning(advised, EVIDENCE) == meaning(reply, EVIDENCE)


def test_a_message_is_never_longer_than_a_row_takes() -> None:
    body = msgspec.json.encode({"error": {"code": "card_declined", "type": "card_error", "message": "x" * 10_000}})
    assert len(meaning(Reply(402, {}, body), EVIDENCE).message) == 500
