"""Plans: reproducible, in order, and with every kind of fault in a long enough run."""

from tests.chaos.asking import plan_askings, plan_templates
from tests.chaos.schedule import KILLS, LONGEST_S, STOPS, WEIGHTS, plan_faults

WHO = {"lmpoolds": 2, "workers": 3}


def test_a_seed_gives_the_same_faults_and_another_seed_others():
    plan = plan_faults(5, seconds=60, every_s=2, **WHO)
    assert plan_faults(5, seconds=60, every_s=2, **WHO) == plan
    assert plan_faults(6, seconds=60, every_s=2, **WHO) != plan


def test_faults_are_in_order_and_within_the_time():
    plan = plan_faults(1, seconds=300, every_s=2, **WHO)
    times = [fault.at_s for fault in plan]
    assert times == sorted(times)
    assert times[-1] < 300
    assert all(0 <= fault.for_s <= LONGEST_S.get(fault.kind, 0) for fault in plan)


def test_a_long_run_has_every_kind_and_hurts_everybody():
    plan = plan_faults(1, seconds=3000, every_s=2, **WHO)
    assert {fault.kind for fault in plan} == set(WEIGHTS)
    victims = {fault.victim for fault in plan}
    assert victims == {"server", "lmpoold 0", "lmpoold 1", "worker 0", "worker 1", "worker 2"}


def test_victims_are_of_the_kind_that_the_fault_names():
    for fault in plan_faults(1, seconds=3000, every_s=2, **WHO):
        for name in ("worker", "lmpoold", "server"):
            if fault.kind.endswith(f" {name}"):
                assert fault.victim.startswith(name), fault


def test_the_ten_minutes_of_make_chaos_hold_fifty_kills_and_stops_for_any_seed():
    for seed in range(20):
        halves = [plan_faults(seed, seconds=300, every_s=3.0, **WHO) for _ in range(2)]
        hurt = [fault for half in halves for fault in half if fault.kind in (*KILLS, *STOPS)]
        assert len(hurt) >= 50, seed


def test_templates_share_prefixes_and_some_draw_by_temperature():
    templates = plan_templates(1)
    assert plan_templates(1) == templates
    assert len({template.tokens for template in templates}) == len(templates)
    beginnings = {template.tokens[:16] for template in templates}
    assert len(beginnings) == 6
    assert {template.temperature for template in templates} == {0.0, 1.0}


def test_askings_are_reproducible_in_order_and_of_every_sort():
    templates = plan_templates(1)
    askings = plan_askings(1, templates, seconds=200, per_s=8, clients=4)
    assert plan_askings(1, templates, seconds=200, per_s=8, clients=4) == askings
    assert [asking.at_s for asking in askings] == sorted(asking.at_s for asking in askings)
    assert len({asking.id for asking in askings}) == len(askings)
    assert {asking.client for asking in askings} == {0, 1, 2, 3}
    for of_the_sort in ("cancel_s", "deadline_ms", "twice", "priority"):
        count = sum(bool(getattr(asking, of_the_sort)) for asking in askings)
        assert 0 < count < len(askings)
    assert 0.7 < len(askings) / (200 * 8) < 1.4
