"""Reservations, deltas, parking and leases against a model, in any order, on both servers."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.store.machine import PoolMachine

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("server", ["fake", "real"])
def test_a_pool_holds_what_its_model_holds_whatever_is_done(server, server_url):
    class Machine(PoolMachine):
        url = server_url if server == "real" else ""

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(10, settings().max_examples // 2),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_machine_sees_a_reservation_that_is_given_back_to_nobody():
    """The comparison can fail: one more promise in the model is a contradiction."""
    machine = PoolMachine()
    try:
        machine.join(0)
        machine.ask([1] * 8, 1, 0)
        machine.both_hold_the_same()
        machine.model.held[0]["ghost.0"] = (1, 1)
        with pytest.raises(AssertionError):
            machine.both_hold_the_same()
    finally:
        machine.teardown()
