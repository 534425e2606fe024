"""Authority, as it is given to the whole."""

from tallystick.authority.approval_cli import approvals
from tallystick.authority.cli import policy
from tallystick.authority.routes import authority_routes
from tallystick.authority.views import Authority
from tallystick.room import Room

ROOM = Room(
    name="authority",
    routes=lambda service, _metrics: authority_routes(Authority(service)),
    commands=(policy, approvals),
)
