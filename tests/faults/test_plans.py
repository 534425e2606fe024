"""What the long runs demand of their plans: a fault that struck one operation is no proof of another."""

from tests.faults.plans import certain, not_struck, struck_by

PLAN = "stripe.charge:hang@1\nstripe.refund:hang@1\nstripe.refund:redirect(3)@2\nstripe.webhook:webhook_late(4)=35%"


def test_a_fault_that_struck_charges_has_not_struck_refunds() -> None:
    struck = struck_by({"active": [{"rule": "stripe.charge:hang@1", "fault": "hang", "struck": 7}]})
    assert not_struck(PLAN, struck, {}) == {"refund": {"hang", "redirect"}}


def test_a_rule_that_never_struck_does_not_count() -> None:
    report = {"active": [{"rule": rule, "fault": "hang", "struck": 0} for rule in PLAN.split("\n")]}
    assert not_struck(PLAN, struck_by(report), {}) == certain(PLAN)


def test_a_floor_is_for_the_operation_it_names() -> None:
    struck = {"charge": {"hang"}, "refund": {"redirect"}}
    assert not_struck(PLAN, struck, {"refund": 1}) == {}
    assert not_struck(PLAN, struck, {"refund": 2}) == {"refund": {"hang"}}
