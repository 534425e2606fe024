"""A machine rolled back with its processes: nothing hints at it, and an earlier send is found all the same."""

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from tallystick.movement.life import store as whereabouts
from tests.restore.backups import backed_up
from tests.restore.life import alive
from tests.restore.test_restore import books, ground


async def test_a_refusal_does_not_make_a_failure_of_what_a_lost_life_had_paid(tmp_path: Path) -> None:
    """Wise refuses without a look at the key. What a lost life made is older than the first send that is known here."""
    async with ground(tmp_path) as place, AsyncExitStack() as stack:
        life = await stack.enter_async_context(alive(place))
        view = await life.payout("w", "wise", 4321)
        restore = await backed_up(place.server, place.dsn, "rollback")
        await life.main.settler.tick()
        assert (await life.read_payout(view.id)).status == "transferred"
        await stack.aclose()
        await restore()
        # Processes that are started anew have seen no clock jump, and no server.
        whereabouts._SEEN.clear()
        place.pass_time(timedelta(minutes=20))
        life = await stack.enter_async_context(alive(place))
        place.control.plan("wise.transfer:refused(error.payouts.restricted)@1")
        await life.main.settler.tick()
        assert place.control.struck() == {"refused": 1}
        (made,) = [one for one in books(place) if one["kind"] == "transfer"]
        found = await life.read_payout(view.id)
        assert (found.status, found.transfer_id) == ("transferred", made["id"])
