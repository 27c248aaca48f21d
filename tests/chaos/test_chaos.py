"""A short seed of what `make chaos` does for ten minutes."""

import pytest
from click.testing import CliRunner

from tests.chaos.__main__ import main, table
from tests.chaos.run import Plan, run
from tests.chaos.schedule import plan_faults

SHORT = Plan(worker="paper", seed=359, seconds=14.0, per_s=8.0, every_s=0.9, patience_s=30.0)


def test_the_short_seed_holds_each_kind_of_death():
    plan = plan_faults(SHORT.seed, seconds=14.0, every_s=0.9, lmpoolds=2, workers=3)
    kinds = {fault.kind for fault in plan}
    assert {"kill worker", "kill lmpoold", "kill server", "stop worker", "replay"} <= kinds
    assert {"hang worker", "hold", "hole", "forge", "function flush"} <= kinds


@pytest.mark.bar(2, 25, 27, 37, 52)
@pytest.mark.timeout(120)
async def test_a_pool_under_faults_loses_repeats_changes_and_keeps_nothing():
    outcome = await run(SHORT, print)
    print(table(outcome))
    assert outcome.verdict.faults == dict.fromkeys(outcome.verdict.faults, 0)
    assert outcome.told.faults == dict.fromkeys(outcome.told.faults, 0)
    assert outcome.broken == []
    assert outcome.idle == []
    assert not any(outcome.deaths.values()), outcome.deaths
    assert outcome.verdict.answered > 80
    assert len(outcome.done) >= 9


def test_the_command_explains_itself():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "--seed" in result.output
