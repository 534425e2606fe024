"""Adyen's errors: each row of the table means what it says, and whatever has no row is Unknown."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.providers.adyen.answers import ABOUT_THE_KEY, TABLE, trouble
from tallystick.providers.classification import Row, classify, row_for
from tallystick.providers.http import Reply
from tallystick.providers.words import Busy, Refused, Unknown
from tests.providers.adyen.examples import encoded

VERDICTS: dict[str, type[object]] = {
    "refused": Refused,
    "says_refused": Unknown,
    "busy": Busy,
    "needs_person": Busy,
    "unknown": Unknown,
}
TRANSIENT = {"transient-error": "true"}
DEEP = b'{"errorCode":' + b"[" * 100_000


def reply(status: int, code: str, kind: str | None, headers: dict[str, str] | None = None) -> Reply:
    """As Checkout words it, or the balance platform (kind "platform")."""
    said = "The Idempotency-Key was used before" if kind == ABOUT_THE_KEY else "no"
    body: dict[str, object]
    if kind == "platform":
        body = {"type": "https://docs.adyen.com/errors/general", "title": "Refused", "status": status, "detail": said}
    else:
        body = {"status": status, "message": said, "errorType": "validation" if kind == ABOUT_THE_KEY else kind}
    return Reply(status, headers or {}, encoded(body | {"errorCode": code}))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.status}-{row.type}-{row.code}-{row.header}")
def test_each_row_is_met_and_means_what_it_says(row: Row) -> None:
    headers = dict([row.header]) if row.header else {}
    came = reply(row.status or 422, row.code or "999", row.type, headers)
    assert row_for(TABLE, trouble(came)) is row
    answer = classify(TABLE, trouble(came), ())
    assert isinstance(answer, VERDICTS[row.verdict])
    if isinstance(answer, Busy):
        assert answer.needs_person is (row.verdict == "needs_person")
    if isinstance(answer, Unknown):
        assert answer.server_error is (came.status >= 500)
        assert answer.says_refused is (row.verdict == "says_refused")


def test_every_row_names_its_source() -> None:
    assert all(row.source.startswith(("docs/providers.md ", "RFC ")) for row in TABLE)


@pytest.mark.parametrize("status", [409, 422])
@pytest.mark.parametrize("kind", ["validation", "platform"])
def test_a_key_in_flight_is_unknown_however_it_is_dressed(status: int, kind: str) -> None:
    """The first request under the key may have moved the money."""
    for headers in ({}, TRANSIENT):
        answer = classify(TABLE, trouble(reply(status, "704", kind, headers)), ())
        assert isinstance(answer, Unknown)
        assert answer.code == "704"


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422, 500, 503])
def test_a_transient_error_is_no_proof_that_nothing_ran(status: int) -> None:
    assert isinstance(classify(TABLE, trouble(reply(status, "000", "validation", TRANSIENT)), ()), Unknown)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b"<html>422</html>", b'{"errorCode":702}', b"\xff\xfe", DEEP]
)
@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 503])
def test_an_error_that_is_not_adyens_own_is_unknown(status: int, body: bytes) -> None:
    """A proxy in between may answer after the request went through."""
    answer = classify(TABLE, trouble(Reply(status, {}, body)), ())
    assert isinstance(answer, Unknown)
    assert not answer.says_refused


def test_an_error_that_speaks_of_another_status_refuses_nothing() -> None:
    """Then it is somebody else's answer in Adyen's words."""
    body = encoded({"status": 500, "errorCode": "999", "message": "no", "errorType": "validation"})
    answer = classify(TABLE, trouble(Reply(422, {}, body)), ())
    assert isinstance(answer, Unknown)
    assert not answer.says_refused


@pytest.mark.parametrize("where", ["message", "detail", "title"])
@pytest.mark.parametrize("kind", [None, "validation"])
def test_the_key_may_be_spoken_of_in_any_of_the_three_texts(where: str, kind: str | None) -> None:
    """An error about the key is about an earlier request, which may have moved the money."""
    texts = {"message": "no", "detail": "no", "title": "no"} | {where: "Idempotency key used before"}
    body = {"errorCode": "999", **texts} | ({} if kind is None else {"errorType": kind})
    assert isinstance(classify(TABLE, trouble(Reply(422, {}, encoded(body))), ()), Unknown)


SAID = {(400, "validation"), (422, "validation"), (400, "platform"), (422, "platform")}


@given(
    status=st.integers(300, 599),
    code=st.text(max_size=8),
    kind=st.sampled_from(["validation", "security", "configuration", "internal", "platform", "other", ABOUT_THE_KEY]),
    transient=st.booleans(),
)
@example(status=429, code="", kind="validation", transient=False)
@example(status=429, code="", kind="validation", transient=True)
def test_anything_else_is_unknown(status: int, code: str, kind: str, *, transient: bool) -> None:
    answer = classify(TABLE, trouble(reply(status, code, kind, TRANSIENT if transient else {})), ())
    is_too_many = status == 429
    if code in {"703", "704"} or kind == ABOUT_THE_KEY or (transient and not is_too_many):
        assert isinstance(answer, Unknown)
        assert not answer.says_refused
    elif is_too_many or status in {401, 403}:
        assert isinstance(answer, Busy)
        assert answer.needs_person is not is_too_many
    else:
        assert isinstance(answer, Unknown)
        assert answer.says_refused is ((status, kind) in SAID and bool(code))
        assert not answer.replayed
