"""Bad input is answered with a clear 4xx, and no money moves."""

import json
import socket
from collections.abc import Callable

import httpx2
import pytest

from tallystick.settings import LIMITS
from tests.http.site import Site

Balances = Callable[..., list[int]]

WHOLE = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 5, "currency": "USD"}


def with_amount(text: str) -> bytes:
    return json.dumps({**WHOLE, "amount_micros": 0}).replace(": 0", f": {text}").encode()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", "amount_not_positive"),
        ("-0", "amount_not_positive"),
        ("-5", "amount_not_positive"),
        ("5.0", "amount_not_integer"),
        ("5e6", "amount_not_integer"),
        ("1e999", "amount_not_integer"),
        ('"5"', "amount_not_integer"),
        ("true", "amount_not_integer"),
        ("null", "amount_not_integer"),
        ("[5]", "amount_not_integer"),
        ("9223372036854775808", "amount_overflow"),
        ("1" + "0" * 40, "amount_overflow"),
        ("1" + "0" * 5_000, "amount_overflow"),
        ("NaN", "json_invalid"),
        ("Infinity", "json_invalid"),
        ("05", "json_invalid"),
    ],
)
def test_an_amount_is_a_positive_whole_number_of_micros(client: httpx2.Client, key: str, text: str, code: str) -> None:
    answer = _post(client, key, with_amount(text))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, code)
    if code != "json_invalid":
        assert "amount_micros" in problem["detail"]
        assert "micros" in problem["remedy"]


BODIES = {
    "empty": (b"", 400, "json_invalid"),
    "no object": (b"[]", 400, "field_invalid"),
    "unknown field": (json.dumps({**WHOLE, "colour": 1}).encode(), 400, "field_invalid"),
    "missing field": (b'{"kind":"transfer","debit":"a"}', 400, "field_invalid"),
    "unknown kind": (b'{"kind":"gift"}', 400, "kind_unknown"),
    "kind of another type": (b'{"kind":5}', 400, "kind_unknown"),
    "unknown currency": (json.dumps({**WHOLE, "currency": "ABC"}).encode(), 400, "currency_unknown"),
    "small letters": (json.dumps({**WHOLE, "currency": "usd"}).encode(), 400, "currency_unknown"),
    "currency of another type": (json.dumps({**WHOLE, "currency": 5}).encode(), 400, "field_invalid"),
    "account id with a space": (json.dumps({**WHOLE, "debit": "a b"}).encode(), 400, "account_invalid"),
    "both sides the same": (json.dumps({**WHOLE, "credit": "a"}).encode(), 400, "same_account"),
    "NUL in the memo": (json.dumps({**WHOLE, "memo": "\0"}).encode(), 400, "memo_invalid"),
    "long memo": (json.dumps({**WHOLE, "memo": "m" * 501}).encode(), 400, "memo_invalid"),
    "field twice": (b'{"amount_micros":1,' + json.dumps(WHOLE).encode()[1:], 400, "json_field_repeated"),
    "nested field twice": (
        b'{"kind":"post","legs":[{"account":"a","account":"b","amount_micros":1,"currency":"USD"}]}',
        400,
        "json_field_repeated",
    ),
    "field twice by escape": (
        b'{"amount\\u005fmicros":1,' + json.dumps(WHOLE).encode()[1:],
        400,
        "json_field_repeated",
    ),
    "trailing garbage": (json.dumps(WHOLE).encode() + b" x", 400, "json_invalid"),
    "two documents": (json.dumps(WHOLE).encode() * 2, 400, "json_invalid"),
    "invalid UTF-8": (
        json.dumps({**WHOLE, "memo": "?"}).encode().replace(b"?", b"\xff"),
        400,
        "json_invalid",
    ),
    "lone surrogate": (json.dumps({**WHOLE, "memo": "\ud800"}).encode(), 400, "json_invalid"),
    "UTF-16": (json.dumps(WHOLE).encode("utf-16"), 400, "json_invalid"),
    "deep nesting": (b'{"kind":' * 100_000, 400, None),
    "deep list": (b'{"x":' + b"[" * 1_000_000, 400, None),
    "unbalanced legs": (
        b'{"kind":"post","legs":[{"account":"a","amount_micros":1,"currency":"USD"}]}',
        400,
        "legs_missing",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_refused(client: httpx2.Client, key: str, name: str) -> None:
    body, status, code = BODIES[name]
    answer = _post(client, key, body)
    problem = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["money"] == "No money moved."
    if code is not None:
        assert problem["code"] == code


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_batch_is_no_server_error(client: httpx2.Client, name: str) -> None:
    body = b'{"operations":[' + BODIES[name][0] + b"]}"
    answer = client.post("/v1/operations/batch", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    for outcome in answer.json().get("outcomes", ()):
        assert outcome["status"] == "rejected"


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/json; charset=latin-1", "application/jsonp", "json"]
)
def test_a_body_that_is_not_declared_as_json_is_refused(
    client: httpx2.Client, key: str, content_type: str | None
) -> None:
    headers = {"idempotency-key": key} | ({"content-type": content_type} if content_type else {})
    answer = client.post("/v1/operations", content=json.dumps(WHOLE).encode(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "content_type_unsupported")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
def test_json_may_be_declared_at_length(client: httpx2.Client, key: str, content_type: str) -> None:
    headers = {"idempotency-key": key, "content-type": content_type}
    answer = client.post("/v1/operations", content=json.dumps(WHOLE).encode(), headers=headers)
    assert answer.json()["code"] == "account_unknown"


HEADERS = {
    "missing": (b"", "idempotency_key_missing"),
    "empty": (b"Idempotency-Key:\n", "idempotency_key_missing"),
    "empty quotes": (b'Idempotency-Key: ""\n', "idempotency_key_missing"),
    "10 KB": (b"Idempotency-Key: " + b"k" * 10_240 + b"\n", "idempotency_key_too_long"),
    "256 characters": (b"Idempotency-Key: " + b"k" * 256 + b"\n", "idempotency_key_too_long"),
    "not ASCII": ("Idempotency-Key: schlüssel\n".encode(), "idempotency_key_invalid"),
    "Latin-1": (b"Idempotency-Key: schl\xfcssel\n", "idempotency_key_invalid"),
    "inner space": (b"Idempotency-Key: a b\n", "idempotency_key_invalid"),
    "twice": (b"Idempotency-Key: a\nIdempotency-Key: b\n", "idempotency_key_invalid"),
    "twice the same": (b"Idempotency-Key: a\nidempotency-key: a\n", "idempotency_key_invalid"),
    "half quoted": (b'Idempotency-Key: "abc\n', "idempotency_key_invalid"),
    "two strings": (b'Idempotency-Key: "a", "b"\n', "idempotency_key_invalid"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_idempotency_key_is_one_plain_header(site: Site, name: str) -> None:
    header, code = HEADERS[name]
    body = json.dumps(WHOLE).encode()
    status, received = site.raw(_head(site, len(body), header), body)
    assert status == 400
    assert f'"code":"{code}"'.encode() in received


def test_a_quoted_key_is_unescaped(client: httpx2.Client) -> None:
    operation = {**WHOLE, "idempotency_key": 'with"quote\\and-slash'}
    first = client.post("/v1/operations/batch", json={"operations": [operation]})
    quoted = client.post("/v1/operations", json=WHOLE, headers={"idempotency-key": r'"with\"quote\\and-slash"'})
    assert first.json()["outcomes"][0]["problem"]["code"] == quoted.json()["code"] == "account_unknown"


def test_a_large_body_is_refused_before_it_is_sent(site: Site) -> None:
    """Only the head is sent: an answer can come only if the server does not wait for the 10 MB."""
    status, received = site.raw(_head(site, 10 * 1024 * 1024, b"Idempotency-Key: large\n"))
    assert status == 413
    assert b"body_too_large" in received


def test_a_large_body_without_a_length_is_cut_off(site: Site) -> None:
    """Chunked and never finished: the answer comes as soon as the limit is passed."""
    head = _head(site, None, b"Idempotency-Key: endless\nTransfer-Encoding: chunked\n")
    size = LIMITS.body_bytes + 1
    status, received = site.raw(head, b"%x\r\n" % size + b" " * size + b"\r\n")
    assert status == 413
    assert b"body_too_large" in received


def test_the_connection_survives_a_large_body(client: httpx2.Client) -> None:
    answer = client.post(
        "/v1/operations/batch", content=b" " * 10_000_000, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "opening",
    [
        b"GET /livez HTTP/1.1\r\nX-Endless: ",
        b"GET /",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
    ],
    ids=["header", "path", "trailer"],
)
def test_an_endless_head_is_cut_off(site: Site, opening: bytes) -> None:
    """Nobody has shown a key yet, so nobody may fill our memory."""
    with socket.create_connection(("127.0.0.1", site.port), 30) as connection:
        connection.sendall(opening)
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            connection.sendall(b"a" * 64_000_000)


def test_a_body_in_many_chunks_is_not_taken_for_a_head(site: Site) -> None:
    body = b" " * 100_000 + json.dumps(WHOLE).encode()
    head = _head(site, None, b"Idempotency-Key: chunks\nTransfer-Encoding: chunked\n")
    pieces = [body[n : n + 200] for n in range(0, len(body), 200)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    status, received = site.raw(head, chunks)
    assert (status, b"account_unknown" in received) == (404, True)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/accounts/", "/v1/accounts/a/b", "/v2/accounts", "/livez/"])
def test_an_unknown_path_is_a_problem(client: httpx2.Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "path_unknown")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/accounts/a", {"PUT", "GET", "HEAD"}),
        ("GET", "/v1/operations", {"POST"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_an_unknown_method_is_a_problem(client: httpx2.Client, method: str, path: str, allowed: set[str]) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_no_header_tells_which_server_this_is(client: httpx2.Client) -> None:
    assert "server" not in client.get("/livez").headers


def _post(client: httpx2.Client, key: str, body: bytes) -> httpx2.Response:
    headers = {"idempotency-key": key, "content-type": "application/json"}
    return client.post("/v1/operations", content=body, headers=headers)


def _head(site: Site, length: int | None, extra: bytes) -> bytes:
    head = b"POST /v1/operations HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"
    head += b"Authorization: Bearer " + site.keys["default", "admin"].encode() + b"\n"
    if length is not None:
        head += b"Content-Length: %d\n" % length
    return (head + extra).rstrip(b"\n")
