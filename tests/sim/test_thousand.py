import pytest

from benchmarks.scale.thousand import REQUESTS_PER_S, breaks_at, measure


def test_a_core_is_full_where_what_workers_ask_for_reaches_a_second_a_second():
    # A route costs 100 us whatever the number, the rest 800 us a worker and second.
    assert breaks_at((10, 100, 2000), (100.0,) * 3, 800.0) == pytest.approx(
        1e6 / (REQUESTS_PER_S * 100 + 800)
    )
    # Beyond the largest, in proportion.
    assert breaks_at((10, 20), (100.0,) * 2, 800.0) == pytest.approx(1000)
    # A route that looks at every worker ends it sooner.
    assert breaks_at((10, 100, 2000), (100.0, 1000.0, 20_000.0), 800.0) < 1000


async def test_every_size_is_measured_with_all_ranks_and_with_eight_of_them():
    found = await measure((8, 96), pages=20, batches=2, seed=0)
    few, many = found["rows"]
    assert (few["workers"], many["workers"], many["pages"]) == (8, 96, 96 * 20)
    assert few["route_all"]["batch"] == many["route_few"]["batch"] == 64
    assert many["bytes_a_page"] > 60
    assert found["one_core_is_full_at_workers"].keys() == {"all_are_candidates", "8_candidates"}
