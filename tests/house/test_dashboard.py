"""The Grafana dashboard asks for figures that exist, by labels that they have."""

import json
import re
from itertools import chain

import pytest
from prometheus_client import CollectorRegistry

from lmpoold.daemon.metrics import PlannerMetrics, RouterMetrics
from lmpoold.gateway.metrics import Metrics
from tests.house.tree import ROOT, text_of
from workers.daemon.metrics import WorkerMetrics

DASHBOARD = json.loads(text_of(ROOT / "lmpoold" / "gateway" / "dashboard.json"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}


def _families():
    """Every family that a gateway, an lmpoold or a worker shows."""
    lmpoold, worker = CollectorRegistry(), CollectorRegistry()
    RouterMetrics(lmpoold, 16)
    PlannerMetrics(lmpoold)
    WorkerMetrics(worker)
    yield from chain(Metrics().registry.collect(), lmpoold.collect(), worker.collect())


NAMES = {
    family.name + suffix: family.name for family in _families() for suffix in SUFFIXES[family.type]
}


def asked(expression):
    return set(re.findall(r"lmpool_\w+", expression))


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_every_metric_of_the_dashboard_exists(title, expression):
    assert asked(expression)
    assert asked(expression) <= NAMES.keys()


def test_every_metric_is_on_the_dashboard():
    shown = {NAMES[name] for _, expression in QUERIES for name in asked(expression)}
    assert set(NAMES.values()) - shown == set()


def test_every_family_says_what_it_is():
    assert [family.name for family in _families() if not family.documentation.strip()] == []


def test_no_two_panels_overlap_or_share_an_id():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not covered & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= covered


def test_histograms_are_asked_by_bucket_and_counters_by_rate():
    for title, expression in QUERIES:
        for name in asked(expression):
            family = NAMES[name]
            if name.endswith("_bucket"):
                assert "histogram_quantile(" in expression, title
            if name == f"{family}_total":
                assert f"rate({name}[$__rate_interval])" in expression, title
