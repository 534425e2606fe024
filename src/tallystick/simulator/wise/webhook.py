"""Wise's webhooks: signed with an RSA key, whose public half the receiver has (docs/providers.md 5, Webhook signature).

The private half is the endpoint's secret, as PEM, so it lies in the books and outlives a restart. `subscribe` makes
one where there is none; `make_secret` and `public_key` are for whoever sets the endpoint himself. What is not a
private key signs with a stranger's, which never verifies.
"""

from base64 import b64encode
from datetime import datetime
from functools import lru_cache
from typing import Final
from uuid import NAMESPACE_OID, uuid4, uuid5

import msgspec
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Endpoint, Notification, Reply
from tallystick.simulator.wise.answer import DIALECT, answer, problem, read, text_of

_PEM: Final = "PRIVATE KEY"
_BITS: Final = 2048
CLIENT_ERROR_TRIES: Final = "wise.client_error_tries"


class Delivery(msgspec.Struct, frozen=True):
    """Where to."""

    url: str
    version: str = "2.0.0"


class SubscriptionRequest(msgspec.Struct, frozen=True):
    """POST /profiles/{p}/subscriptions."""

    trigger_on: str
    delivery: Delivery
    name: str = ""


def subscribe(_profile: str, body: bytes, books: Books, now: datetime) -> Reply:
    """POST /profiles/{p}/subscriptions: webhooks go there from now on, signed with the key pair of these books."""
    asked = read(body, SubscriptionRequest)
    if isinstance(asked, Reply):
        return asked
    if asked.trigger_on != "transfers#state-change":
        return problem(422, "NOT_VALID", "Only transfers#state-change is announced", "trigger_on")
    present = books.endpoint(DIALECT)
    kept = tuple(secret for secret in present.secrets if _PEM in secret) if present is not None else ()
    books.set_endpoint(DIALECT, Endpoint(asked.delivery.url, kept or (make_secret(),)))
    rendered = {
        "id": str(uuid5(NAMESPACE_OID, books.next_id("subscription"))),
        "name": asked.name,
        "delivery": {"version": asked.delivery.version, "url": asked.delivery.url},
        "trigger_on": asked.trigger_on,
        "created_at": text_of(now),
    }
    return answer(rendered, 201)


def public_key_of_books(books: Books, _now: datetime) -> Reply:
    """The public half, as PEM: Wise publishes its own on a page, the simulator here."""
    endpoint = books.endpoint(DIALECT)
    if endpoint is None or not endpoint.secrets or _PEM not in endpoint.secrets[0]:
        return problem(404, "NOT_FOUND", "There is no endpoint with a private key: subscribe first")
    return Reply(200, public_key(endpoint.secrets[0]).encode(), (("content-type", "application/x-pem-file"),))


def make_secret() -> str:
    """A new private key, as PEM: the secret of Wise's endpoint."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


def public_key(secret: str) -> str:
    """The public half of the secret, as PEM."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return _key(secret).public_key().public_bytes(encoding, form).decode()


def notification(event: bytes, endpoint: Endpoint, sent_at: datetime) -> Notification:
    body = msgspec.json.encode({**msgspec.json.decode(event), "sent_at": text_of(sent_at)})
    secret = endpoint.secrets[0] if endpoint.secrets else ""
    key = _key(secret if _PEM in secret else _strangers_secret())
    signature = key.sign(body, padding.PKCS1v15(), hashes.SHA256())
    headers = (
        ("content-type", "application/json"),
        ("X-Signature-SHA256", b64encode(signature).decode()),
        # docs/providers.md 5, Webhook ids: another one with each delivery, so it is no key to know an event by.
        ("X-Delivery-Id", str(uuid4())),
    )
    return Notification(headers, body)


@lru_cache(maxsize=8)
def _key(secret: str) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key(secret.encode(), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise TypeError("Wise signs with RSA")
    return key


@lru_cache(maxsize=1)
def _strangers_secret() -> str:
    return make_secret()
