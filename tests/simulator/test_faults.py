"""Fault plans: their grammar, which calls they strike, and that a seed decides the same way in any order."""

import random
import re
from pathlib import Path

import pytest

from tallystick.simulator import catalogue
from tallystick.simulator.catalogue import ALL, CATALOGUE, FAULTS, KEYED, KEYLESS, OPERATIONS, Stage
from tallystick.simulator.dialect import Call, Dialect, Reply
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.faults import Faults, draw
from tallystick.simulator.plan import PlanFault, Rule, parse
from tallystick.simulator.running import endpoint, plan_text
from tests.simulator.station import Station, transfer


def only(text: str) -> Rule:
    (rule,) = parse(text)
    return rule


def struck(faults: Faults, calls: int, operation: str = "transfer", dialect: str = "stripe") -> list[str | None]:
    strikes = (faults.strike_call(dialect, operation, f"k{number}", has_key=True) for number in range(calls))
    return [None if strike is None else strike.fault.name for strike in strikes]


@pytest.mark.parametrize(
    ("text", "first", "last", "rate", "argument"),
    [
        ("stripe.transfer:execute_then_drop", 1, 1, None, ""),
        ("stripe.transfer:execute_then_drop@3", 3, 3, None, ""),
        ("stripe.transfer:execute_then_drop@2-4", 2, 4, None, ""),
        ("stripe.transfer:execute_then_drop@*", 1, 10**9, None, ""),
        ("stripe.transfer:slow_after(2.5)", 1, 1, None, "2.5"),
        ("stripe.transfer:slow_after", 1, 1, None, "5"),
        ("*.*:gateway_503=2%", 1, 1, 0.02, ""),
        ("stripe.transfer:refused(account_closed)@2", 2, 2, None, "account_closed"),
        ("wise.transfers#state-change:webhook_lost", 1, 1, None, ""),
    ],
)
def test_a_rule_is_read(text: str, first: int, last: int, rate: float | None, argument: str) -> None:
    rule = only(text)
    assert (rule.first, rule.last, rule.rate, rule.argument) == (first, last, rate, argument)


def test_rules_are_separated_by_commas_and_lines_and_may_be_commented() -> None:
    text = """
    # the third is lost
    stripe.transfer:execute_then_drop@3, stripe.refund:html_200  # and this
    *.charge:gateway_502=1.5%
    """
    assert [rule.fault.name for rule in parse(text)] == ["execute_then_drop", "html_200", "gateway_502"]
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("stripe.transfer", "line 1, column 1", "dialect.operation:fault"),
        ("stripe.transfer:explode", "line 1, column 1", "execute_then_drop"),
        ("paypal.transfer:html_200", "line 1, column 1", "stripe, adyen, square, wise"),
        ("stripe.transfer:error_703", "line 1, column 1", "a fault of adyen"),
        ("stripe.charge:paid_then_failed", "line 1, column 1", "strikes payout"),
        ("stripe.transfer:html_200@0", "line 1, column 1", "count from 1"),
        ("stripe.transfer:html_200@4-2", "line 1, column 1", "count from 1"),
        ("stripe.transfer:html_200=101%", "line 1, column 1", "0% to 100%"),
        ("stripe.transfer:slow_after(soon)", "line 1, column 1", "seconds"),
        ("stripe.transfer:hang(3)", "line 1, column 1", "no argument"),
        ("stripe.transfers:html_200", "line 1, column 1", "There are: charge, refund, transfer,"),
        ("square.transfer:html_200", "line 1, column 1", "no operation 'transfer' at square"),
        ("*.transfers:html_200", "line 1, column 1", "no operation 'transfers'. There are"),
        ("wise.fund:in_flight", "line 1, column 1", "not fund"),
        ("square.cancel:in_flight", "line 1, column 1", "needs a key"),
        ("wise.transfer:forget_key", "line 1, column 1", "a fault of stripe, adyen, square"),
        ("wise.webhook:webhook_stale", "line 1, column 1", "a fault of stripe"),
        ("adyen.webhook:webhook_future", "line 1, column 1", "a fault of stripe"),
        ("adyen.webhook:webhook_two_events", "line 1, column 1", "a fault of stripe, square"),
        ("stripe.webhook:webhook_late(315360001)", "line 1, column 1", "at most 315360000"),
        (f"stripe.webhook:webhook_late({'9' * 400})", "line 1, column 1", "takes seconds"),
        ("stripe.transfer:huge_body(65)", "line 1, column 1", "megabytes, at most 64"),
        ("stripe.transfer:rate_limited(2.5)", "line 1, column 1", "whole seconds"),
        ("stripe.transfer:html_200,\nstripe.refund:html_200,  nonsense", "line 2, column 26", "'nonsense'"),
    ],
)
def test_a_bad_plan_shows_the_place_and_what_is_valid(text: str, place: str, says: str) -> None:
    with pytest.raises(PlanFault) as fault:
        parse(text)
    assert place in str(fault.value)
    assert says in str(fault.value)


def test_a_plan_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("stripe.transfer:hang")
    assert plan_text(str(tmp_path / "plan")) == "stripe.transfer:hang"
    assert plan_text("stripe.transfer:hang") == "stripe.transfer:hang"


def test_an_endpoint_without_a_secret_is_refused_without_showing_one() -> None:
    assert endpoint("stripe=http://x/h,whsec_1,whsec_2")[1].secrets == ("whsec_1", "whsec_2")
    with pytest.raises(ValueError, match="DIALECT=URL,SECRET"):
        endpoint("stripe=http://x/h")


def test_a_plan_strikes_the_calls_it_names_and_no_others() -> None:
    faults = Faults()
    faults.add("stripe.transfer:html_200@2-3, stripe.transfer:hang@3-4, adyen.transfer:empty_200")
    assert struck(faults, 5) == [None, "html_200", "html_200", "hang", None]
    assert struck(faults, 1, "refund") == [None]
    assert struck(faults, 2, dialect="adyen") == ["empty_200", None]
    assert faults.report()["struck"] == {"html_200": 2, "hang": 1, "empty_200": 1}
    faults.clear()
    assert struck(faults, 3) == [None] * 3


def test_a_star_strikes_only_whom_the_fault_can() -> None:
    faults = Faults()
    faults.add("*.*:paid_then_failed@*")
    assert struck(faults, 1, "transfer") == [None]
    assert struck(faults, 1, "payout") == ["paid_then_failed"]
    assert struck(faults, 1, "payout", dialect="wise") == [None]


def test_webhook_rules_match_a_part_of_the_type() -> None:
    faults = Faults()
    faults.add("stripe.payout:webhook_lost, adyen.*:webhook_late, wise.transfers#*:webhook_doubled")
    assert faults.strike_webhook("stripe", "transfer.created", "evt_1") is None
    lost = faults.strike_webhook("stripe", "payout.paid", "evt_2")
    assert lost is not None
    assert lost.fault.name == "webhook_lost"
    late = faults.strike_webhook("adyen", "AUTHORISATION", "evt_3")
    assert late is not None
    assert late.seconds == 3 * 86_400
    doubled = faults.strike_webhook("wise", "transfers#state-change", "evt_4")
    assert doubled is not None


def by_key(seed: int, keys: list[str], rate: str = "20%") -> dict[str, list[bool]]:
    faults = Faults(seed)
    faults.add(f"*.transfer:gateway_503={rate}")
    found: dict[str, list[bool]] = {}
    for key in keys:
        found.setdefault(key, []).append(faults.strike_call("stripe", "transfer", key, has_key=True) is not None)
    return found


def test_a_seed_decides_the_same_in_any_order() -> None:
    keys = [f"key-{number % 200}" for number in range(600)]
    shuffled = keys.copy()
    random.Random(1).shuffle(shuffled)
    first = by_key(7, keys)
    assert first == by_key(7, shuffled)
    assert first != by_key(8, keys)
    share = sum(sum(each) for each in first.values()) / 600
    assert 0.12 < share < 0.28


def test_a_key_sent_again_is_decided_again() -> None:
    """Otherwise a struck key would be struck for ever, and no retry could succeed."""
    assert any(len(set(decided)) == 2 for decided in by_key(1, ["a", "b", "c"] * 20, "50%").values())


def test_rates_of_nothing_and_everything() -> None:
    keys = [f"k{number}" for number in range(50)]
    assert not any(each[0] for each in by_key(3, keys, "0%").values())
    assert all(each[0] for each in by_key(3, keys, "100%").values())


def test_a_draw_knows_where_its_facts_end() -> None:
    assert draw("ab", "c") != draw("a", "bc")
    assert draw(1, "a") == draw(1, "a")
    assert 0 <= draw("x") < 1


def test_the_catalogue_is_complete_and_cites_its_sources() -> None:
    assert len(CATALOGUE) == len(FAULTS)
    for fault in FAULTS:
        assert fault.meaning, fault.name
        assert fault.source, fault.name
        assert set(fault.dialects) <= set(ALL)
        assert bool(fault.actions) == (fault.stage is Stage.LATER)
        assert not fault.default or float(fault.default) > 0


@pytest.mark.parametrize("dialect", ALL)
def test_the_catalogue_knows_the_operations_of_every_dialect(dialect: str) -> None:
    """A word that no call has would be a plan that never strikes."""
    source = Path(catalogue.__file__).parent / dialect / "api.py"
    # The kinds of objects that can be acted on are no operations.
    text = re.sub(r"_ACTS: Final = \{.*?\n\}", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    written = set(re.findall(r'"([a-z]+)"', text))
    assert written & set(OPERATIONS) == set(KEYED[dialect] + KEYLESS[dialect])


@pytest.mark.parametrize("dialect", every_dialect(), ids=lambda dialect: dialect.name)
def test_every_dialect_words_every_trouble_it_can_be_asked_for(dialect: Dialect) -> None:
    asked = {"error_500"}
    silent = {"drop_before", "redirect", "forget_key", "in_flight", "error_500_no_object", "error_500_object_later"}
    for fault in FAULTS:
        if dialect.name not in fault.dialects or fault.name in silent:
            continue
        if fault.stage in {Stage.BEFORE_KEYS, Stage.BEFORE_EFFECT}:
            asked.add(fault.name)
    for name in sorted(asked):
        operation = "fund" if name == "fund_rejected" else "transfer"
        reply = dialect.fault(name, Call(operation, lambda _books, _now: Reply(200), "k"))
        assert (reply.status >= 400) or name == "fund_rejected", name


def test_rates_strike_over_the_wire_and_are_counted(simulator: Station) -> None:
    simulator.call("POST", "faults", {"plan": "stripe.transfer:rate_limited=50%", "seed": 5})
    client = simulator.stripe(max_network_retries=0)
    failed = 0
    for number in range(20):
        try:
            transfer(client, f"k{number}")
        except Exception:  # noqa: BLE001  counted below
            failed += 1
    assert 0 < failed < 20
    assert simulator.struck() == {"rate_limited": failed}
    assert len(simulator.movements("transfer")) == 20 - failed


def test_a_fault_of_keys_strikes_only_calls_that_have_one() -> None:
    faults = Faults(0)
    faults.add("*.*:in_flight@*")
    assert faults.strike_call("stripe", "transfer", "x", has_key=False) is None
    assert faults.strike_call("stripe", "transfer", "x", has_key=True) is not None
