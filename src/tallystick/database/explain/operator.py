"""Explain to an operator: what one tenant has under a name, and what belongs to no tenant at all.

For whoever has the whole database. A tenant's own callers are shown `explain.explain` alone.
"""

from tallystick.database.explain.flow import Known, explain
from tallystick.database.explain.lead import outside, unmarked
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.webhooks.explain import explain_events, explain_told


async def everything(database: Database, tenant: Tenant, name: str) -> Known:
    """Each thing once, however many of its names lead to it."""
    name = await unmarked(database, name)
    of_tenant = await explain(database, tenant, name)
    events = await explain_events(database, tenant, name)
    told = await explain_told(database, tenant, name)
    beside = await outside(database, name)
    found = {(one.what, one.id): one for one in (*of_tenant.found, *events, *told.found, *beside.others)}
    return Known(tuple(found.values()), (*of_tenant.unfinished, *told.unfinished))
