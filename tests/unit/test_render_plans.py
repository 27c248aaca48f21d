"""What `lmpoolctl plans` prints of plans."""

from ctl.commands.plans import Plans, phase_rows, plan_sheets, plans_json
from ctl.render import drawn, plain
from lmpoold.protocol.transfer import PlanRow

ENDED = {
    "id": "b" * 32,
    "outcome": "finalize",
    "mode": "copy",
    "why": "fetch",
    "src": "0",
    "dst": "1",
    "blocks": "8",
    "publish_us": "4321",
    "src_us": "700",
    "dst_us": "800",
    "cost_us": "5400",
    "freed": "0",
    "reason": "-",
}
REFUSED = {"why": "fetch", "for": "r1", "said": "refused low_benefit from=0 to=1 blocks=2"}


def live(phase, age_ms):
    return PlanRow("a" * 40, phase, "copy", "fetch", 0, 1, 8, age_ms, 1500, "-")


FOUND = Plans([live("execute", 30), live("execute", 70), live("abort", 5)], [ENDED], [REFUSED])


def test_each_phase_has_a_row_with_its_oldest_plan():
    assert phase_rows(FOUND.live) == [
        ("prepare", 0, None),
        ("execute", 2, 70),
        ("publish", 0, None),
        ("abort", 1, 5),
    ]


def test_a_plan_that_ended_stands_beside_its_prediction():
    text = "\n".join(plain(table) for table in plan_sheets(FOUND))
    assert "4.3" in text
    assert "5.4" in text
    assert "refused low_benefit from=0 to=1 blocks=2" in text


def test_tables_about_nothing_are_left_out():
    assert len(plan_sheets(FOUND)) == 4
    assert len(plan_sheets(Plans([], [], []))) == 1


def test_a_terminal_of_eighty_columns_holds_every_table():
    for table in plan_sheets(FOUND):
        assert max(map(len, drawn(table, 80).splitlines())) <= 80


def test_programs_get_the_same():
    row = plans_json(FOUND)
    assert row["phases"]["execute"] == {"plans": 2, "oldest_ms": 70}
    assert row["ended"] == [ENDED]
