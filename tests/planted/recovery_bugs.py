"""Bugs in what is done after a restore, by command: see `bugs`."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

from tallystick.recovery import flow as recovery
from tallystick.recovery import store
from tests.planted.bug import Bug

RECOVERY: Final = "tests/recovery/test_flow.py::"


def marked_and_not_asked_about() -> None:
    """What the backup shows as unsent is claimed by recovery, and not asked about."""
    sql = store._SQL
    pending = sql["mark_pending"].replace("ask_first = true,", "ask_first = false,")
    processing = sql["mark_processing"].replace("AND NOT ask_first ORDER", "AND false ORDER")
    if pending == sql["mark_pending"] or processing == sql["mark_processing"]:
        raise ValueError("recovery marks in another way by now")
    sql["mark_pending"], sql["mark_processing"] = pending, processing


def asked_before_the_books_were_read() -> None:
    """Movements that no row explains are kept only after the rows were asked about."""
    original = recovery._orphans

    async def orphans(*arguments: Any, only_keep: bool = False, **named: Any) -> Any:
        return (0, ()) if only_keep else await original(*arguments, **named)

    cast("Any", recovery)._orphans = orphans


def waits_for_rows_alone() -> None:
    """What was lost with its row cannot be on its way."""

    async def nothing(*_of: Any) -> None:
        return None

    cast("Any", recovery).life = SimpleNamespace(unread=nothing, read=nothing)


def goes_on_with_any_run() -> None:
    """Also with one that was finished, after which something was sent."""
    sql = store._SQL
    sql["goes_on"] = sql["goes_on"].replace("w.database = 0 AND", "")


RECOVERY_BUGS: Final[Mapping[str, Bug]] = {
    "marked_and_not_asked_about": Bug(
        marked_and_not_asked_about, (RECOVERY + "test_a_backup_taken_before_the_sends_pays_nobody_twice",)
    ),
    "waits_for_rows_alone": Bug(waits_for_rows_alone, (RECOVERY + "test_it_waits_for_what_was_lost_with_its_row_too",)),
    "goes_on_with_any_run": Bug(goes_on_with_any_run, (RECOVERY + "test_a_finished_recovery_is_over",)),
    "asked_before_the_books_were_read": Bug(
        asked_before_the_books_were_read,
        (RECOVERY + "test_a_generation_that_was_lost_with_the_backup_is_seen_by_its_movement",),
    ),
}
