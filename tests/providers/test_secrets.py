"""Secrets: whatever is printed, logged, raised or stored, they are not in it."""

import logging
import pickle
import traceback
from datetime import timedelta

import msgspec
import pytest

from tallystick.errors import TallystickError
from tallystick.providers.port import Provider
from tallystick.providers.words import Done
from tallystick.secret import Secret
from tests.providers.worlds import API_KEY, HEX, Control, World, leave, send

SECRETS = (API_KEY, HEX, "whsec_contract", "whsec_old", "sigkey")
FAULTS = ["unauthorized", "forbidden", "execute_then_500", "cut_body", "html_200", "redirect"]


def shown(*things: object) -> str:
    """Everything a person or a log could see of them."""
    return " ".join(f"{thing!r} {thing!s} {thing}" for thing in things)


def clean(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


async def test_no_answer_log_or_error_holds_a_secret(
    world: World,
    provider: Provider,
    books: Control,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = []
    for number, fault in enumerate(FAULTS, start=1):
        books.plan(f"{world.name}.*:{fault}@1-9")
        seen.append(shown(await send(provider, world.instruction(number))))
        seen.append(
            shown(await provider.look_up(world.instruction(number), first_sent_at=books.now(), now=books.now()))
        )
        seen.append(shown(await provider.ping(), await provider.fetch(world.purpose, "1")))
        try:
            listed = provider.movements(since=books.now() - timedelta(days=1), until=books.now())
            seen.extend([shown(movement) async for movement in listed])
            seen.append(shown(await provider.events(cursor=None, now=books.now())))
        except TallystickError as error:
            seen.append(shown(error) + "".join(traceback.format_exception(error)))
        books.call("DELETE", "faults")
    seen.append(shown(provider.receive([("stripe-signature", "t=1,v1=00")], b"{}", now=books.now())))
    seen.append(shown(provider, vars(provider)))
    captured = capfd.readouterr()
    assert clean("".join(seen)), "an answer or error shows a secret"
    assert clean(caplog.text + captured.out + captured.err)


@pytest.mark.parametrize("world", ["stripe"], indirect=True)
async def test_a_clients_secret_is_told_to_its_caller_and_shown_to_nobody(world: World, provider: Provider) -> None:
    charge = msgspec.structs.replace(world.charge(), payment_method=None)
    answer = await provider.send(charge, leave())
    assert isinstance(answer, Done), answer
    assert answer.client_secret is not None
    text = answer.client_secret.reveal()
    assert text.startswith(f"{answer.id}_secret_")
    assert text not in shown(answer)
    assert text.encode() not in msgspec.json.encode(answer.evidence)
    fetched = await provider.fetch("charge", answer.id)
    assert isinstance(fetched, Done)
    assert fetched.client_secret == answer.client_secret
    assert text not in shown(fetched)


def test_a_secret_cannot_be_shown_by_accident() -> None:
    secret = Secret("hunter2-hunter2")
    assert "hunter2" not in shown(secret, [secret], {"key": secret}, (secret,))
    assert f"{secret:>20}".strip() == "(hidden)"
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": secret})
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret == Secret("hunter2-hunter2")
    assert secret != Secret("other")
    assert secret != "hunter2-hunter2"
