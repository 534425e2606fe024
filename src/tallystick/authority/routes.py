"""The routes of authority: who may pay how much to whom."""

from tallystick.authority.rules import Policy
from tallystick.authority.store import DestinationView, PolicyView
from tallystick.authority.views import Authority, DestinationPage, DestinationRequest
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.parameters import LIMIT, NUMBERED
from tallystick.http.route import Answer, Route


def authority_routes(authority: Authority) -> tuple[Route, ...]:
    """The policy, and the destinations that it lets be paid."""
    return (
        Route(
            method="GET",
            path="/v1/authority-policy",
            endpoint=authority.policy,
            name="read_authority_policy",
            group="Authority",
            summary="Who may pay how much to whom",
            description="The tenant's policy. `changed_by` null: nobody has chosen one, and nothing is bounded.",
            need=Need.READ,
            answers={
                200: Answer(description="The policy.", types=(PolicyView,), example=examples.AUTHORITY_POLICY),
            },
        ),
        Route(
            method="PUT",
            path="/v1/authority-policy",
            endpoint=authority.put_policy,
            name="put_authority_policy",
            group="Authority",
            summary="Bound payouts",
            description=(
                "Replaces the whole policy, for payouts promised from now on; what is left out is no bound. Amounts "
                "are of gross, a day is one of UTC by the database's clock, and what it has stays counted. With "
                "ceilings, only their currencies are paid. Above `second_person_micros` a payout is `held` until "
                "another person has approved it. With `known_destinations` only those are paid that were made known at "
                "least `waiting_seconds` before. Needs a key of the role admin, and is journaled with it."
            ),
            need=Need.ADMIN,
            body=Policy,
            body_examples=examples.AUTHORITY_POLICIES,
            answers={
                200: Answer(description="It is now like this.", types=(PolicyView,), example=examples.AUTHORITY_POLICY),
            },
            own_problems=("authority_invalid", "currency_unknown", "in_flight", "outcome_unknown"),
        ),
        Route(
            method="GET",
            path="/v1/destinations",
            endpoint=authority.list,
            name="list_destinations",
            group="Authority",
            summary="List known destinations",
            description="Those that were made known, newest first; withdrawn ones too.",
            need=Need.READ,
            parameters=(NUMBERED, LIMIT),
            answers={
                200: Answer(description="A page.", types=(DestinationPage,), example=examples.DESTINATION_PAGE),
            },
        ),
        Route(
            method="PUT",
            path="/v1/destinations",
            endpoint=authority.put,
            name="put_destination",
            group="Authority",
            summary="Make a destination known",
            description=(
                "Or withdraw it, with `known` false. One that is known stays known since then; made known again after "
                "it was withdrawn, it waits again. Whether and how long it waits is the tenant's policy's. Journaled."
            ),
            need=Need.WRITE,
            body=DestinationRequest,
            body_examples=examples.DESTINATIONS,
            answers={
                200: Answer(description="It is now like this.", types=(DestinationView,), example=examples.DESTINATION),
            },
            own_problems=("destination_invalid", "destination_unknown", "in_flight", "outcome_unknown"),
        ),
    )
