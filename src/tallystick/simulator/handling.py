"""How one call is carried out: the faults and the key layer around what a dialect does.

    route ─> [fault: before the keys] ─> keys ─> [fault: instead] ─> execute ─> [fault: after] ─> commit ─> wire

Whatever a call changed is committed before the first byte of its answer leaves. A dialect that raises is answered
500, and nothing is stored: that is a bug of the simulator, not a fault of the plan. If it had changed something by
then, all calls of that turn are undone and answered so: a savepoint for each would cost every good call a tenth.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.catalogue import Stage
from tallystick.simulator.clock import Clock
from tallystick.simulator.dialect import Call, Dialect, Reply, Request
from tallystick.simulator.faults import Faults, Strike
from tallystick.simulator.keys import Identity, Keys
from tallystick.simulator.wire import Exchange

ROLL_FORWARD: Final = "roll_forward"
_LOG: Final = logging.getLogger(__name__)
_HTML: Final = b"<!doctype html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>"
_GOOD: Final = range(200, 300)
_MEGABYTE: Final = 1_000_000
_PLACEHOLDERS: Final = {"authorization": "Bearer sk_not_kept", "x-api-key": "not_kept"}


class Handling:
    """Everything between a request of a dialect and its answer."""

    def __init__(self, *, books: Books, clock: Clock, faults: Faults, keys: Keys) -> None:
        self._books = books
        self._clock = clock
        self._faults = faults
        self._keys = keys
        self._delayed: set[asyncio.TimerHandle] = set()

    def handle(self, dialect: Dialect, request: Request, exchange: Exchange) -> None:
        """Answer the request, sooner or later or never."""
        call = self._routed(dialect, request)
        if isinstance(call, Reply):
            exchange.answer(call)
            return
        changes = self._books.changes
        try:
            self._carry_out(dialect, call, request, exchange)
        except Exception as error:  # noqa: BLE001  around what is done, too: a fault reads and writes, and may fail
            self._undo(changes, error, exchange)

    def _carry_out(self, dialect: Dialect, call: Call, request: Request, exchange: Exchange) -> None:
        strike = self._struck(dialect, call, request)
        if strike is None:
            self._after_commit(exchange.answer, self._answer(dialect, call))
            return
        match strike.fault.stage:
            case Stage.BEFORE_KEYS:
                self._strike_before_keys(dialect, call, strike, exchange)
            case Stage.BEFORE_EFFECT | Stage.AFTER_EFFECT:
                self._after_commit(exchange.answer, self._answer(dialect, call, strike, request))
            case Stage.ANSWER:
                self._after_commit(exchange.answer, self._spoilt(dialect, call, strike))
            case Stage.WIRE:
                self._after_commit(_breaker(exchange, strike), self._answer(dialect, call))
            case Stage.DELAY:
                self._strike_delay(dialect, call, strike, exchange)
            case Stage.LATER:
                reply = self._answer(dialect, call)
                self._plan_actions(dialect, strike, reply)
                self._after_commit(exchange.answer, reply)
            case Stage.WEBHOOK:
                raise AssertionError("webhook faults strike events")

    def roll_forward(self, dialect: Dialect, stored_request: str) -> None:
        """Carry out what was answered with a 500 long ago (docs/providers.md 2.2, last row)."""
        call = self._routed(dialect, msgspec.json.decode(stored_request, type=Request))
        if not isinstance(call, Call):
            return
        now = self._clock.now()
        known = self._keys.answer(dialect, call, now)
        if known is None or known.status not in _GOOD:
            # Unless the client sent it again meanwhile, and had it done.
            reply = call.execute(self._books, now)
            if known is None:
                self._keys.remember(dialect, call, reply, now)

    def _struck(self, dialect: Dialect, call: Call, request: Request) -> Strike | None:
        if not self._faults.has_calls:
            return None
        identity = call.key or self._described(dialect, request)
        return self._faults.strike_call(dialect.name, call.operation, identity, has_key=call.key is not None)

    def _described(self, dialect: Dialect, request: Request) -> str:
        """What stands for a call without a key: the client's words for what it is about.

        Ids are given in the order of arrival, so each is replaced by its object's reference.
        """

        def worded(word: str) -> str:
            reference = self._books.reference(dialect.name, word)
            return word if reference is None else f"<{reference}>"

        path = "/".join(worded(part) for part in request.path.split("/"))
        query = {name: [worded(value) for value in values] for name, values in sorted(request.query.items())}
        return f"{request.method} {path} {query}"

    def _routed(self, dialect: Dialect, request: Request) -> Call | Reply:
        try:
            return dialect.route(request)
        except Exception:  # noqa: BLE001  a bug in a dialect must not end the server
            _LOG.exception("routing %s %s failed", request.method, request.path)
            return _broken()

    def _answer(
        self, dialect: Dialect, call: Call, strike: Strike | None = None, request: Request | None = None
    ) -> Reply:
        """What the keys say, or the dialect does. A strike replaces what is done or stored."""
        now, changes = self._clock.now(), self._books.changes
        try:
            known = self._keys.answer(dialect, call, now)
            if known is not None:
                return known
            if strike is None:
                reply = call.execute(self._books, now)
            else:
                reply = self._strike_effect(dialect, call, strike, request, now)
            self._keys.remember(dialect, call, reply, now)
        except Exception as error:  # noqa: BLE001  a bug in a dialect must not end the server
            _LOG.exception("executing %s of %s failed", call.operation, dialect.name)
            self._books.undo_turn(changes, error)
            return _broken()
        return reply

    def _strike_effect(
        self, dialect: Dialect, call: Call, strike: Strike, request: Request | None, now: datetime
    ) -> Reply:
        name = strike.fault.name
        if name == "execute_then_500":
            reply = call.execute(self._books, now)
            # Where a dialect does not store the 500, the key stays bound to what was truly done.
            self._keys.remember(dialect, call, reply, now)
            # A refusal stays one: there is no object that a 500 could hide.
            return dialect.fault("error_500", call) if reply.status in _GOOD else reply
        if name == "error_500_object_later":
            stored = msgspec.json.encode(_without_secrets(request)).decode()
            self._books.later(dialect.name, ROLL_FORWARD, stored, now + timedelta(seconds=strike.seconds))
            return dialect.fault("error_500", call)
        if name == "error_500_no_object":
            return dialect.fault("error_500", call)
        return dialect.fault(strike.words, call)

    def _strike_before_keys(self, dialect: Dialect, call: Call, strike: Strike, exchange: Exchange) -> None:
        name = strike.fault.name
        if name == "drop_before":
            exchange.drop()
        elif name == "redirect":
            exchange.answer(Reply(302, b"", (("location", "http://127.0.0.1:9/elsewhere"),)))
        elif name in {"in_flight", "error_704"}:
            exchange.answer(dialect.keys(self._books).in_flight(call))
        elif name == "forget_key":
            if call.key is not None:
                self._keys.forget(dialect, call)
            self._after_commit(exchange.answer, self._answer(dialect, call))
        else:
            exchange.answer(dialect.fault(strike.words, call))

    def _strike_delay(self, dialect: Dialect, call: Call, strike: Strike, exchange: Exchange) -> None:
        if strike.fault.name == "slow_after":
            reply = self._answer(dialect, call)
            begun = self._keys.begin(dialect, call)
            # The effect does not wait for the answer. Its time begins with the commit, which may undo the effect.
            self._after_commit(lambda told: self._delay(strike.seconds, begun, lambda: exchange.answer(told)), reply)
            return
        known = self._known(dialect, call)
        if known is not None:
            self._after_commit(exchange.answer, known)
            return
        begun = self._keys.begin(dialect, call)
        self._delay(strike.seconds, begun, lambda: self._after_commit(exchange.answer, self._answer(dialect, call)))

    def _delay(self, seconds: float, begun: Identity | None, finish: Callable[[], None]) -> None:
        def end() -> None:
            self._delayed.discard(timer)
            self._keys.end(begun)
            finish()

        timer = asyncio.get_running_loop().call_later(seconds, end)
        self._delayed.add(timer)

    def forget_delayed(self) -> None:
        """What was to come late never comes: the books it belonged to are gone."""
        for timer in self._delayed:
            timer.cancel()
        self._delayed.clear()
        self._keys.end_all()

    def _spoilt(self, dialect: Dialect, call: Call, strike: Strike) -> Reply:
        self._answer(dialect, call)
        json = (("content-type", "application/json"),)
        match strike.fault.name:
            case "html_200":
                return Reply(200, _HTML, (("content-type", "text/html; charset=utf-8"),))
            case "empty_200":
                return Reply(200, b"", json)
            case "wrong_type_200":
                return Reply(200, b'["ok"]', json)
            case "huge_body":
                filler: dict[str, Any] = {"filler": "x" * int(float(strike.argument) * _MEGABYTE)}
                return Reply(200, msgspec.json.encode(filler), json)
            case name:
                # A gateway's error after the effect: gateway_502_after.
                return dialect.fault(name.removesuffix("_after"), call)

    def _known(self, dialect: Dialect, call: Call) -> Reply | None:
        return self._keys.answer(dialect, call, self._clock.now())

    def _plan_actions(self, dialect: Dialect, strike: Strike, reply: Reply) -> None:
        found = object_id(reply)
        if reply.status not in _GOOD or found is None:
            return
        for action, seconds in strike.fault.actions:
            self._books.later(dialect.name, action, found, self._clock.now() + timedelta(seconds=seconds))

    def _undo(self, changes: int, error: Exception, exchange: Exchange) -> None:
        _LOG.error("a call could not be carried out", exc_info=error)
        self._books.undo_turn(changes, error)
        self._after_commit(exchange.answer, _broken())

    def _after_commit(self, send: Callable[[Reply], None], reply: Reply) -> None:
        def tell(error: sqlite3.Error | None) -> None:
            if error is not None:
                _LOG.error("the books could not be committed: %s", error)
            send(reply if error is None else _broken())

        self._books.after_commit(tell)


def object_id(reply: Reply) -> str | None:
    """The id of the object a reply is about, in whichever dialect."""
    try:
        body = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return None
    if not isinstance(body, dict):
        return None
    for part in (body, body.get("payment"), body.get("refund")):
        found = (part.get("id") or part.get("pspReference")) if isinstance(part, dict) else None
        if found is not None:
            return str(found)
    return None


def _without_secrets(request: Request | None) -> Request | None:
    """As it may be stored: a client's key is no part of the books. The dialects ask that there is one."""
    if request is None:
        return None
    headers = {name: _PLACEHOLDERS.get(name, value) for name, value in request.headers.items()}
    return msgspec.structs.replace(request, headers=headers)


def _broken() -> Reply:
    return Reply(500, b'{"error":{"type":"api_error","message":"the simulator itself failed; see its log"}}')


def _breaker(exchange: Exchange, strike: Strike) -> Callable[[Reply], None]:
    match strike.fault.name:
        case "execute_then_drop":
            return lambda _reply: exchange.drop()
        case "execute_then_reset":
            return lambda _reply: exchange.reset()
        case "cut_body":
            return exchange.cut
        case "trickle":
            return lambda reply: exchange.trickle(reply, strike.seconds)
        case _:
            # It hangs.
            return lambda _reply: None
