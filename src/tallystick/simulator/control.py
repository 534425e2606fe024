"""The simulator's own API under /_sim/: what a test asks as a second opinion, and how it steers. JSON both ways.

    GET  books | objects | movements | deliveries | faults | switches | clock | endpoints
    POST faults {"plan"} | clock {"advance_seconds"} | act {"dialect", "action", "id"} | deliver | reset
    PUT  switches {name: value} | endpoints/{dialect} {"url", "secrets"} | balances/{dialect} {currency: amount}
    DELETE faults | endpoints/{dialect}

It has no password, so it listens on loopback only, unless told.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.clock import Clock
from tallystick.simulator.dialect import Dialect, Endpoint, Reply, Request
from tallystick.simulator.endpoints import checked
from tallystick.simulator.faults import Faults
from tallystick.simulator.keys import Keys
from tallystick.simulator.plan import PlanFault
from tallystick.simulator.webhooks import Webhooks

_MOST_ROWS: Final = 10_000
# What the file can count to.
_LAST_NUMBER: Final = 2**63 - 1
_LOG: Final = logging.getLogger(__name__)


class _Advance(msgspec.Struct):
    advance_seconds: float


class _Act(msgspec.Struct):
    dialect: str
    action: str
    id: str


class _Deliver(msgspec.Struct):
    dialect: str
    event_id: str


class _Plan(msgspec.Struct):
    plan: str
    seed: int | None = None


class NotFound(LookupError):
    """The path, or what it names, is not there."""


class Control:
    """The control API. `settle` runs what is due, and returns when it is done."""

    def __init__(
        self,
        *,
        books: Books,
        clock: Clock,
        faults: Faults,
        keys: Keys,
        webhooks: Webhooks,
        dialects: Mapping[str, Dialect],
        settle: Callable[[], Awaitable[None]],
        forget_delayed: Callable[[], None],
    ) -> None:
        self.books = books
        self.clock = clock
        self.faults = faults
        self._keys = keys
        self._webhooks = webhooks
        self._dialects = dialects
        self._settle = settle
        self._forget_delayed = forget_delayed
        self._actions: dict[tuple[str, str], Callable[[Request], Any]] = {
            ("GET", "books"): lambda _request: self.summary(),
            ("GET", "objects"): self._objects,
            ("GET", "movements"): self._movements,
            ("GET", "deliveries"): self._deliveries,
            ("GET", "events"): self._events,
            ("GET", "faults"): lambda _request: self.faults.report(),
            ("POST", "faults"): self._add_faults,
            ("DELETE", "faults"): lambda _request: self.faults.clear(),
            ("GET", "switches"): lambda _request: self.switches(),
            ("PUT", "switches"): self._put_switches,
            ("GET", "clock"): lambda _request: self._time(),
            ("POST", "clock"): self._advance,
            ("GET", "endpoints"): lambda _request: self._endpoints(),
            ("PUT", "endpoints"): self._put_endpoint,
            ("DELETE", "endpoints"): lambda request: self.books.set_endpoint(self._named(request), None),
            ("PUT", "balances"): self._put_balances,
            ("POST", "act"): self._act,
            ("POST", "deliver"): self._deliver,
            ("POST", "reset"): lambda _request: self.reset(),
        }

    async def answer(self, request: Request) -> Reply:
        """Never raises: what is wrong with a request is said in the reply."""
        word = request.path.removeprefix("/_sim/").split("/")[0]
        try:
            with self.books.alone():
                result = self._actions[request.method, word](request)
            await self.books.committed()
            if request.method != "GET":
                await self._settle()
                result = self._time() if word == "clock" else result
        except (KeyError, NotFound) as error:
            return _reply(404, {"error": f"not found: {error}"})
        except (ValueError, OverflowError, PlanFault) as error:
            return _reply(400, {"error": str(error)})
        except Exception:  # noqa: BLE001  whoever asks must hear that something is wrong
            _LOG.exception("%s %s failed", request.method, request.path)
            return _reply(500, {"error": "the simulator itself failed; its log tells why"})
        return _reply(200, {"done": True} if result is None else result)

    def summary(self) -> dict[str, Any]:
        """Counts and sums of everything."""
        return {"entries": self.books.summary(), "keys": self._keys.counts(), "clock": self._time()}

    def switches(self) -> list[dict[str, Any]]:
        """Each unverified fact, its values, its source, and how it stands."""
        return [
            {"name": name, "value": self.books.switch(name), "values": switch.values, "source": switch.source}
            for name, switch in self.books.switches.items()
        ]

    def _objects(self, request: Request) -> list[dict[str, Any]]:
        found = self.books.find(
            _text(request, "dialect"),
            _text(request, "kind"),
            reference=_text(request, "reference") or None,
            parent=_text(request, "parent") or None,
            limit=_count(request, "limit", 100),
        )
        return [msgspec.to_builtins(entry) for entry in found]

    def _movements(self, request: Request) -> list[dict[str, Any]]:
        after, limit = _count(request, "after", 0), _count(request, "limit", 1000)
        return self.books.movements(after=after, dialect=_text(request, "dialect"), limit=limit)

    def _events(self, request: Request) -> list[dict[str, Any]]:
        object_id = _text(request, "object_id") or None
        limit = _count(request, "limit", 100)
        events = self.books.events(_text(request, "dialect"), object_id=object_id, limit=limit)
        return [msgspec.to_builtins(event) for event in events]

    def _deliveries(self, request: Request) -> list[dict[str, Any]]:
        dialect, state = _text(request, "dialect"), _text(request, "state")
        return self._webhooks.report(dialect=dialect, state=state, limit=_count(request, "limit", 100))

    def _add_faults(self, request: Request) -> dict[str, Any]:
        plan = msgspec.json.decode(request.body, type=_Plan)
        rules = self.faults.add(plan.plan)
        if plan.seed is not None:
            self.faults.seed = plan.seed
        return {"added": [rule.text for rule in rules]}

    def _put_switches(self, request: Request) -> list[dict[str, Any]]:
        for name, value in msgspec.json.decode(request.body, type=dict[str, str]).items():
            self.books.set_switch(name, value)
        return self.switches()

    def _time(self) -> dict[str, Any]:
        return {"now": self.clock.now(), "offset_seconds": self.clock.offset_seconds}

    def _advance(self, request: Request) -> None:
        self.clock.advance(msgspec.json.decode(request.body, type=_Advance).advance_seconds)

    def _endpoints(self) -> dict[str, Any]:
        # Secrets stay inside: a page of the books is the last place to look for them.
        found = {name: self.books.endpoint(name) for name in self._dialects}
        return {name: None if endpoint is None else endpoint.url for name, endpoint in found.items()}

    def _put_endpoint(self, request: Request) -> None:
        dialect, endpoint = self._named(request), msgspec.json.decode(request.body, type=Endpoint)
        self.books.set_endpoint(dialect, checked(dialect, endpoint))

    def _put_balances(self, request: Request) -> dict[str, int]:
        dialect, account = self._named(request), _text(request, "account")
        for currency, amount in msgspec.json.decode(request.body, type=dict[str, int]).items():
            self.books.set_balance(dialect, currency, amount, account)
        return self.books.balances(dialect, account)

    def _act(self, request: Request) -> None:
        act = msgspec.json.decode(request.body, type=_Act)
        self._dialects[act.dialect].act(self.books, self.clock.now(), act.action, act.id)

    def _deliver(self, request: Request) -> None:
        deliver = msgspec.json.decode(request.body, type=_Deliver)
        self._webhooks.resend(deliver.dialect, deliver.event_id)

    def reset(self) -> None:
        """Empty books, no faults, and nothing of before that is still to come."""
        self._forget_delayed()
        self.books.reset()
        self.faults.clear()

    def _named(self, request: Request) -> str:
        name = request.path.rpartition("/")[2]
        if name not in self._dialects:
            raise NotFound(f"there is no dialect {name!r}")
        return name


def _text(request: Request, name: str) -> str:
    return request.query.get(name, [""])[-1]


def _count(request: Request, name: str, default: int) -> int:
    # A negative limit would be none at all.
    most = _LAST_NUMBER if name == "after" else _MOST_ROWS
    return min(max(int(_text(request, name) or default), 0), most)


def _reply(status: int, body: object) -> Reply:
    return Reply(status, msgspec.json.encode(body))
