"""Wise's errors: each row of the table means what it says, and whatever has no row is Unknown."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.classification import Row, classify, row_for
from tallystick.providers.http import Reply
from tallystick.providers.wise.answers import FAULTS, OWN_ID, SCA_REQUIRED, TABLE, trouble
from tallystick.providers.words import Busy, Refused, Unknown

VERDICTS: dict[str, type[object]] = {
    "refused": Refused,
    "says_refused": Unknown,
    "busy": Busy,
    "needs_person": Busy,
    "unknown": Unknown,
}


def reply(status: int, code: str, path: str = "targetAccount", headers: dict[str, str] | None = None) -> Reply:
    body = {"errors": [{"code": code, "message": "no", "path": path, "arguments": []}]}
    return Reply(status, headers or {}, msgspec.json.encode(body))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.status}-{row.type}-{row.code}")
def test_each_row_is_met_and_means_what_it_says(row: Row) -> None:
    headers = {"x-2fa-approval": "one-time"} if row.code == SCA_REQUIRED else {}
    path = OWN_ID if row.type == OWN_ID else "targetAccount"
    came = reply(row.status or 422, "NOT_VALID", path, headers)
    assert row_for(TABLE, trouble(came, "making")) is row
    answer = classify(TABLE, trouble(came, "making"), ())
    assert isinstance(answer, VERDICTS[row.verdict])
    if isinstance(answer, Busy):
        assert answer.needs_person is (row.verdict == "needs_person")
    if isinstance(answer, Unknown):
        assert answer.server_error is (came.status >= 500)
        assert answer.says_refused is (row.verdict == "says_refused")


def test_every_row_names_its_source() -> None:
    assert all(row.source.startswith("docs/providers.md ") for row in TABLE)


def test_how_long_to_stay_away_is_wises_to_say() -> None:
    answer = classify(TABLE, trouble(reply(429, "rate.limited", headers={"retry-after": "17"}), "funding"), ())
    assert isinstance(answer, Busy)
    assert answer.after_seconds == 17


def test_a_challenge_needs_a_person_and_its_token_is_told_to_nobody() -> None:
    answer = classify(TABLE, trouble(Reply(403, {"x-2fa-approval": "one-time-token"}, b""), "funding"), ())
    assert isinstance(answer, Busy)
    assert answer.needs_person
    assert answer.code == SCA_REQUIRED
    assert "one-time-token" not in repr(answer)


@pytest.mark.parametrize("status", [400, 404, 408, 409, 410, 422, 500, 502, 503, 504])
def test_no_error_of_a_funding_is_final(status: int) -> None:
    """The transfer is there: somebody else may fund it."""
    for came in (Reply(status, {}, b"Transfer not found"), reply(status, "NOT_VALID")):
        answer = classify(TABLE, trouble(came, "funding"), ())
        assert isinstance(answer, Unknown)
        assert not answer.says_refused


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"<html>", b'{"errors":[]}', b'{"errors":[{}]}', b"\xff", b"[" * 100_000]
)
@pytest.mark.parametrize("status", [400, 404, 409, 422, 500])
def test_an_error_that_is_not_wises_own_is_unknown(status: int, body: bytes) -> None:
    assert isinstance(classify(TABLE, trouble(Reply(status, {}, body), "making"), ()), Unknown)


@given(
    status=st.integers(300, 599),
    code=st.text(max_size=12),
    path=st.sampled_from(["quoteUuid", "targetAccount", OWN_ID, ""]),
    funding=st.booleans(),
)
def test_anything_else_is_unknown(status: int, code: str, path: str, *, funding: bool) -> None:
    fault = trouble(reply(status, code, path), "funding" if funding else "making")
    answer = classify(TABLE, fault, ())
    if fault.type == OWN_ID:
        assert isinstance(answer, Unknown)
        assert not answer.says_refused
    elif status in {401, 403, 429}:
        assert isinstance(answer, Busy)
        assert answer.needs_person is (status != 429)
    else:
        assert isinstance(answer, Unknown)
        assert answer.says_refused is (fault.type == FAULTS and status in {400, 422} and bool(code))
        assert not answer.replayed
