"""Ticks without a process of our own: AWS Lambda, and Cloud Run or anything that speaks functions-framework.

    handler  tallystick.serverless.aws_lambda     called by a schedule
    target   tallystick.serverless.cloud_run      called by a scheduler's POST

Each call opens its connections, makes one tick and closes everything before it returns: such platforms freeze a
process between calls, so nothing may be left running in it. All state is the database's. A tick stops claiming early
enough to finish what it holds; killed all the same, it loses nothing, because the next one finds what is overdue.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog
import uvloop

from tallystick import app
from tallystick import settings as configuration
from tallystick.audit.author import by_worker, sign
from tallystick.errors import Busy, InFlight, Misconfigured, OutcomeUnknown, TallystickError, Unreachable
from tallystick.providers.steady import steady

log = structlog.get_logger("tallystick.serverless")

# Kept for closing the connections and answering.
_CLOSING_SECONDS: Final = 2.0
# With less than this a tick would claim rows for the next one to recover.
_SHORTEST_TICK_SECONDS: Final = 3.0
# Cloud Scheduler gives an HTTP call up after this, unless its job says otherwise.
_SCHEDULER_SECONDS: Final = 180.0
# The longest request that Cloud Run allows.
_LONGEST_SECONDS: Final = 3_600.0
_JSON: Final = {"Content-Type": "application/json"}


class LambdaContext(Protocol):
    """What AWS passes beside the event."""

    def get_remaining_time_in_millis(self) -> int:
        """Until this invocation is killed."""


class HttpRequest(Protocol):
    """What functions-framework passes: a Flask request."""

    @property
    def method(self) -> str:
        """GET, POST, ..."""

    @property
    def args(self) -> Mapping[str, str]:
        """The query."""


def aws_lambda(event: object, context: LambdaContext) -> dict[str, Any]:  # noqa: ARG001 - whatever woke us
    """One tick within the invocation's time. Returns its counts; an exception marks the invocation as failed."""
    return _run(lambda: context.get_remaining_time_in_millis() / 1000)


def cloud_run(request: HttpRequest) -> tuple[str, int, dict[str, str]]:
    """One tick within the request's time: `?budget=SECONDS`, or what the platform and its scheduler allow.

    200 with the counts; 503 and the same call may be repeated; 500 and a person must look.
    """
    # Whatever fetches links must not move money.
    if request.method != "POST":
        return json.dumps({"error": "POST makes a tick; nothing was done."}), 405, {**_JSON, "Allow": "POST"}
    began, budget = steady(), _budget(request.args.get("budget"))
    if budget is None:
        error = f"budget is a number of seconds, more than 0 and at most {_LONGEST_SECONDS:g}; nothing was done."
        return json.dumps({"error": error}), 400, _JSON
    allowed = budget
    try:
        return json.dumps(_run(lambda: allowed - (steady() - began))), 200, _JSON
    except TallystickError as error:
        is_outage = isinstance(error, Unreachable | OutcomeUnknown | Busy | InFlight)
        log.error("tick_failed", reason=str(error))
        return json.dumps({"error": _told(error)}), 503 if is_outage else 500, _JSON


def _budget(text: str | None) -> float | None:
    if text is None:
        # Set by the platform to the service's own request timeout; 0 stands for none.
        timeout = os.environ.get("CLOUD_RUN_TIMEOUT_SECONDS", "")
        own = float(timeout) if timeout.isascii() and timeout.isdigit() else 0.0
        return min(own or _SCHEDULER_SECONDS, _SCHEDULER_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds <= _LONGEST_SECONDS else None


def _told(error: TallystickError) -> str:
    """Without what a caller would be told about his money: a tick may have sent before it broke off."""
    if isinstance(error, Unreachable | OutcomeUnknown | Busy | InFlight):
        reason = str(error).split(". ", 1)[0]
        return f"{reason}. The tick broke off; what it had claimed is asked about when it is overdue. Call again."
    return str(error)


def _run(remaining: Callable[[], float]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_tick(remaining))


async def _tick(remaining: Callable[[], float]) -> dict[str, Any]:
    settings = configuration.load()
    if settings.database_url is None:
        raise Misconfigured("TALLY_DATABASE_URL is not set: what a function writes to its own disk is lost with it.")
    sign(by_worker(app.worker_name()))
    async with app.running(settings, migrating=False) as service:
        # Asked only now: connecting took some of it.
        budget = remaining() - _CLOSING_SECONDS
        if budget < _SHORTEST_TICK_SECONDS:
            log.warning("too_little_time", seconds=round(budget, 1))
            return {"ticked": False, "reason": "too_little_time"}
        try:
            async with asyncio.timeout(budget):
                ticked = await service.settler.tick(budget_seconds=budget)
        except TimeoutError:
            # Better than being killed: the connections are closed, and somebody is told.
            log.warning("tick_interrupted", seconds=round(budget, 1))
            return {"ticked": False, "reason": "interrupted"}
    counts = msgspec.to_builtins(ticked)
    log.info("ticked", **counts)
    if ticked.disputed:
        log.warning("settlements_need_a_person", disputed=ticked.disputed)
    return {"ticked": True, **counts, "reclaims_are_frequent": ticked.reclaims_are_frequent}
