"""Probe 4: two keys for one payout, or one key for two.

With two keys the provider pays twice; with one key for two payouts it pays only the first. The attacker chooses what
the fields contain, and where the key is computed: in another process, on another host, in the database, by another
release. He wins when the key of the same payout differs anywhere, or when those of two payouts are equal anywhere.
"""

import asyncio
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec

from tallystick import queries
from tallystick.keys.derived import digest, hex64, settlement_key, square45, uuid_form
from tallystick.ledger.outcome import Rejected
from tallystick.probes.contender import account
from tallystick.probes.ground import Books, Ground, connected
from tallystick.probes.naive import Naive, concatenated
from tallystick.probes.ours import Ours
from tallystick.probes.report import Outcome, Tried
from tallystick.probes.trying import judged

_SQL = queries.load(__package__, "key_nondeterminism.sql")
_PATIENCE_SECONDS: Final = 60.0
_RANDOM_PAYOUTS: Final = 200
# Accents alone and combined, dotted and dotless i, a ligature, another script, beyond the first plane.
_LETTERS: Final = "ab1|-\u00e9\u00df\u0130\u0131e\u0301\u212b\ufb01\u05d0\U0001f4b6"
_WESTERN: Final = "ab1|-\u00e9\u00df\u00e5\u00ff\u00a0"

Fields = Mapping[str, Any]

PAYOUT: Final[Fields] = {
    "tenant": "default",
    "currency": "EUR",
    "provider": "stripe",
    "attribution_id": "outcome-17",
    "squad_id": "amber",
    "net_micros": 12_340_000,
    "generation": 0,
}
# What the first release computed for it. A later one that computes anything else pays everybody twice.
FIRST_RELEASE: Final = "c1a388179726cd732ef47a28a0053c31707896c85492872c7e49c19eca3cb51c"

_ACCENTED: Final = "caf\u00e9-\ufb01-\u212b-\u1e9b\u0323"
# Pairs of payouts that are not the same, and look it, or run together.
PAIRS: Final[Mapping[str, Sequence[tuple[Fields, Fields]]]] = {
    "field boundaries": [
        ({"attribution_id": "ab", "squad_id": "c"}, {"attribution_id": "a", "squad_id": "bc"}),
        ({"squad_id": "a1", "net_micros": 23}, {"squad_id": "a", "net_micros": 123}),
        ({"squad_id": "a", "net_micros": 1, "generation": 23}, {"squad_id": "a", "net_micros": 12, "generation": 3}),
        ({"attribution_id": "a\x00b", "squad_id": "c"}, {"attribution_id": "a", "squad_id": "b\x00c"}),
        ({"attribution_id": "a|b", "squad_id": "c"}, {"attribution_id": "a", "squad_id": "b|c"}),
        ({"tenant": "ten", "provider": "ant"}, {"tenant": "tena", "provider": "nt"}),
        # The lengths themselves, written into a field.
        ({"attribution_id": "\x00\x00\x00\x01a"}, {"attribution_id": "a"}),
    ],
    "another generation": [({"generation": 0}, {"generation": 1}), ({"generation": 1}, {"generation": 11})],
    "another amount, currency, provider or tenant": [
        ({"net_micros": 1}, {"net_micros": 10}),
        ({"currency": "EUR"}, {"currency": "USD"}),
        ({"provider": "stripe"}, {"provider": "wise"}),
        ({"tenant": "default"}, {"tenant": "other"}),
    ],
    "a number and its digits": [
        ({"net_micros": 12_340_000}, {"net_micros": "12340000"}),
        ({"generation": 0}, {"generation": "0"}),
        ({"attribution_id": "17"}, {"attribution_id": 17}),
    ],
    "letters that look alike": [
        *(
            ({"attribution_id": _ACCENTED}, {"attribution_id": unicodedata.normalize(form, _ACCENTED)})
            for form in ("NFD", "NFKC", "NFKD")
        ),
        ({"squad_id": "amber"}, {"squad_id": "\u0430mber"}),
        ({"squad_id": "amber"}, {"squad_id": "amber\u200b"}),
        ({"squad_id": "amber"}, {"squad_id": "Amber"}),
        ({"squad_id": "amber"}, {"squad_id": "amber "}),
        ({"attribution_id": "1"}, {"attribution_id": "01"}),
        ({"attribution_id": "\u0661"}, {"attribution_id": "1"}),
    ],
}
# What is no amount, no generation or no currency: a key of it would be one that nobody else arrives at.
_NO_KEYS: Final[Sequence[Fields]] = (
    {"net_micros": 12_340_000.0},
    {"net_micros": True},
    {"generation": False},
    {"currency": "eur"},
    {"currency": "Eur"},
    {"currency": "EUR "},
    {"currency": "\uff25\uff35\uff32"},
    {"attribution_id": b"outcome-17"},
    {"attribution_id": None},
    {"attribution_id": "\ud800"},
)
# The same payout, asked for with the amount in another type: it must not become another payout.
_NO_AMOUNTS: Final = ("12340000", 12_340_000.0, "1.234e7", True)
# The same payout, computed elsewhere. Each is a new process.
ELSEWHERE: Final[Mapping[str, Mapping[str, Any]]] = {
    "after a restart": {},
    "with another hash seed": {"environment": {"PYTHONHASHSEED": "12345"}},
    "under python -O": {"options": ["-OO"]},
    "on another host, in another zone and language": {
        "environment": {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONUTF8": "0"},
        "host": "probe-elsewhere",
    },
    "with another encoding": {"environment": {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}},
}
# Runs in the other process: what the machine says of itself is changed before our code is loaded.
_THERE: Final = """
import json, os, platform, socket, sys, uuid
host = sys.argv[1]
if host:
    socket.gethostname = platform.node = lambda: host
    os.uname = lambda: os.uname_result(("Other", host, "0", "0", "other"))
from tallystick.keys.derived import settlement_key
payouts = json.loads(sys.stdin.buffer.read())
json.dump([[settlement_key(**p).hex() for p in payouts], [uuid.uuid4().hex for p in payouts]], sys.stdout)
"""


async def key_nondeterminism(ground: Ground, *, seed: int = 1) -> tuple[Tried, ...]:
    """Every way; `seed` chooses the random payouts."""
    await ground.clean()
    dsn, latin = await asyncio.gather(
        ground.fresh_database(),
        ground.fresh_database(options="TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"),
    )
    payouts, western = _random_payouts(seed, _LETTERS), _random_payouts(seed, _WESTERN)
    tried = [
        Tried(way=f"one key for two: {name}", attack=_collides(pairs), control=_naive_collides(pairs))
        for name, pairs in PAIRS.items()
    ]
    tried.append(
        Tried(
            way="two keys for one: another type",
            attack=await judged(_no_keys(ground, dsn), otherwise=True),
            control=_naive_no_keys(),
        )
    )
    tried += [
        Tried(way=f"two keys for one: {name}", attack=attack, control=control)
        for name, (attack, control) in zip(
            ELSEWHERE, await asyncio.gather(*(_elsewhere(payouts, **how) for how in ELSEWHERE.values())), strict=True
        )
    ]
    tried += [
        Tried(
            way="two keys for one: by the database",
            attack=await judged(_by_database(dsn, payouts), otherwise=True),
            control=_naive_again(payouts),
        ),
        Tried(
            way="two keys for one: by a database in another encoding",
            attack=await judged(_by_database(latin, western), otherwise=True),
            control=_naive_again(payouts),
        ),
        Tried(way="two keys for one: by another release", attack=_by_release(), control=_naive_again([PAYOUT])),
        await _paid(ground, dsn),
    ]
    return tuple(tried)


def _payout(fields: Fields) -> dict[str, Any]:
    return {**PAYOUT, **fields}


def _collides(pairs: Sequence[tuple[Fields, Fields]]) -> Outcome:
    forms: Sequence[Callable[[bytes], str]] = (hex64, square45, uuid_form)
    equal = [
        f"{one} and {other} as {form.__name__}"
        for one, other in pairs
        for form in forms
        if form(settlement_key(**_payout(one))) == form(settlement_key(**_payout(other)))
    ]
    return Outcome(won=bool(equal), told="; ".join(equal) or f"{len(pairs)} pairs, no two keys equal")


def _naive_collides(pairs: Sequence[tuple[Fields, Fields]]) -> Outcome:
    """The paper's three fields, one after the other; normalised and in lower case, because somebody once asked."""

    def key(fields: Fields) -> str:
        payout = _payout(fields)
        text = f"{payout['attribution_id']}{payout['squad_id']}".replace("\x00", "").replace("|", "")
        return concatenated(unicodedata.normalize("NFKC", text).casefold(), payout["net_micros"])

    equal = [f"{one} and {other}" for one, other in pairs if key(one) == key(other)]
    return Outcome(won=bool(equal), told=f"{len(equal)} of {len(pairs)} pairs have one key")


async def _no_keys(ground: Ground, dsn: str) -> Outcome:
    given = []
    for fields in _NO_KEYS:
        try:
            given.append(f"{fields}: {settlement_key(**_payout(fields)).hex()}")
        except (TypeError, ValueError):
            continue
    async with Ours(dsn, ground.books.url) as ours:
        for amount in _NO_AMOUNTS:
            made = await ours.wish(ours.tenant, f"typed-{amount}", attribution_id="typed", gross_micros=amount)
            if not isinstance(made, Rejected):
                given.append(f"{amount!r}: {made.view.idempotency_key}")
    return Outcome(won=bool(given), told="; ".join(given) or f"{len(_NO_KEYS) + len(_NO_AMOUNTS)} refused")


def _naive_no_keys() -> Outcome:
    right = concatenated("outcome-17", "amber", 12_340_000)
    odd = concatenated("outcome-17", "amber", 12_340_000.0)
    return Outcome(won=odd != right, told="an amount that passed through JSON as a float has another key")


async def _elsewhere(
    payouts: Sequence[Fields],
    *,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    host: str = "",
) -> tuple[Outcome, Outcome]:
    command = [sys.executable, *options, "-c", _THERE, host]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        input=msgspec.json.encode(payouts),
        env={**os.environ, **(environment or {})},
        capture_output=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        told = f"the other process failed: {done.stderr.decode(errors='replace')[-300:]}"
        return Outcome(won=True, told=told), Outcome(won=False, told=told)
    there, naive_there = msgspec.json.decode(done.stdout, type=tuple[list[str], list[str]])
    here = [settlement_key(**payout).hex() for payout in payouts]
    return _compared(here, there), _compared(_naive_keys(payouts), naive_there)


def _compared(here: Sequence[str], there: Sequence[str]) -> Outcome:
    differ = sum(one != other for one, other in zip(here, there, strict=True))
    return Outcome(won=differ > 0, told=f"{differ} of {len(here)} keys differ")


def _naive_again(payouts: Sequence[Fields]) -> Outcome:
    return _compared(_naive_keys(payouts), _naive_keys(payouts))


def _naive_keys(payouts: Sequence[Fields]) -> list[str]:
    """A key made when it is needed, as it is often done: unique for sure, and never to be seen again."""
    return [uuid4().hex for _ in payouts]


async def _by_database(dsn: str, payouts: Sequence[Fields]) -> Outcome:
    """The function that guards every row, in sessions that write numbers, times and bytes otherwise."""
    here = [settlement_key(**payout).hex() for payout in payouts]
    there: list[str] = []
    async with connected(dsn) as connection:
        for session in ("plain_session", "odd_session"):
            await connection.execute(_SQL[session])
            rows = await connection.fetch(_SQL["keys"], msgspec.json.encode(payouts).decode())
            there += [row["key"] for row in rows]
    return _compared([*here, *here], there)


def _by_release() -> Outcome:
    # In any order of the fields, too.
    reversed_ = dict(reversed(list(PAYOUT.items())))
    keys = {settlement_key(**PAYOUT).hex(), digest("settlement", **reversed_).hex()}
    return Outcome(won=keys != {FIRST_RELEASE}, told=f"the first release had {FIRST_RELEASE}, and now it is {keys}")


async def _paid(ground: Ground, dsn: str) -> Tried:
    """All the way: payouts whose fields run together are each paid, by a provider that knows them by key alone."""
    names = [("ab", "c"), ("a", "bc"), ("abc", "d"), ("abcd", "e1"), ("abcde", "1")]

    async def ours() -> Outcome:
        async with Ours(dsn, ground.books.url) as contender:
            for attribution, squad in names:
                await contender.wish(
                    contender.tenant,
                    f"{attribution}-{squad}",
                    attribution_id=attribution,
                    squad_id=squad,
                    destination=account(attribution),
                )
            await contender.tick()
        return await _unpaid(ground.books, names)

    async def naive() -> Outcome:
        async with Naive(dsn, ground.control_books.url, key="content") as contender:
            for attribution, squad in names:
                await contender.wish({"attribution": attribution, "squad": squad, "destination": account(attribution)})
            await contender.tick()
        return await _unpaid(ground.control_books, names)

    return Tried(
        way="one key for two: paid once by the provider",
        attack=await judged(ours(), otherwise=True),
        control=await judged(naive(), otherwise=False),
    )


async def _unpaid(books: Books, names: Sequence[tuple[str, str]]) -> Outcome:
    counted = await books.transfers()
    wrong = {name: counted[account(name)] for name, _ in names if counted[account(name)] != 1}
    return Outcome(won=bool(wrong), told=f"transfers in the provider's books: {wrong}" if wrong else "each paid once")


def _random_payouts(seed: int, letters: str) -> list[dict[str, Any]]:
    chance = random.Random(seed)  # noqa: S311 - the same for the same seed

    def text(most: int) -> str:
        return "".join(chance.choice(letters) for _ in range(chance.randint(1, most)))

    return [
        {
            "tenant": f"tenant-{chance.randint(0, 9)}",
            "currency": chance.choice(("EUR", "USD", "JPY", "KWD")),
            "provider": chance.choice(("stripe", "adyen", "wise", "simulator")),
            "attribution_id": text(40),
            "squad_id": text(20),
            "net_micros": chance.choice((1, 10, 2**31, 2**53 + 1, 2**63 - 1, chance.randint(1, 10**12))),
            "generation": chance.randint(0, 12),
        }
        for _ in range(_RANDOM_PAYOUTS)
    ] + [dict(PAYOUT)]
