"""What the monitoring stands on: every metric is documented, every query asks for one that exists, nobody is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.observability import metrics
from tests.clock import EPOCH

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
METRICS = DEPLOY / "prometheus" / "METRICS.md"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "squidbot.json"
_ROW = re.compile(r"^\| `(squidbot_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", re.MULTILINE)
_NAME = re.compile(r"\b(?:squidbot|process)_\w+\b")


def shown_name(collector):
    """The name under which a metric is asked for."""
    [family] = collector.describe()
    return f"{family.name}_total" if family.type == "counter" else family.name


def ours():
    """All metrics of the program: name → (type, labels, what it says)."""
    found = {}
    for collector in vars(metrics).values():
        if isinstance(collector, MetricWrapperBase):
            [family] = collector.describe()
            labels = ", ".join(collector._labelnames)
            found[shown_name(collector)] = (family.type, labels, family.documentation)
    return found


def askable():
    """Everything that a query may ask for."""
    names = set(ours())
    names |= {f"{name}_{end}" for name, (kind, *_) in ours().items() if kind == "histogram" for end in ("bucket", "sum", "count")}  # fmt: skip
    process = {sample.name for family in metrics.REGISTRY.collect() for sample in family.samples}
    return names | {name for name in process if name.startswith("process_")}


def unknown(query):
    """Names in a query that no metric has, and labels that it does not have."""
    bad = [name for name in _NAME.findall(query) if name not in askable()]
    for name, inner in re.findall(r"(squidbot_\w+)\{([^}]*)\}", query):
        known = ours().get(re.sub(r"_(bucket|sum|count)$", "", name), ours().get(name, ("", "", "")))[1]
        asked = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", inner)
        bad += [f"{name}{{{one}}}" for one in asked if one not in known.split(", ")]
    return bad


def queries():
    """All queries of rules and dashboard."""
    rules = [
        rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return rules + [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_metric_is_documented_as_it_is():
    """Name, type, labels and meaning in METRICS.md are those of the program, and there are no others."""
    told = {
        name: (kind, labels.strip(), text) for name, kind, labels, text in _ROW.findall(METRICS.read_text())
    }
    assert told == ours()


def test_every_label_is_explained():
    """Each label has a row that lists its values."""
    explained = set(re.findall(r"^\| (\w+)(?: of \w+)? \|", METRICS.read_text(), re.MULTILINE))
    assert {label for _, labels, _ in ours().values() for label in labels.split(", ") if label} <= explained


def test_every_query_asks_for_what_exists():
    """Rules and dashboard; a misspelt name or label would never fire and never show."""
    assert len(queries()) > 30
    assert [bad for query in queries() for bad in unknown(query)] == []


@pytest.mark.parametrize(
    "query", ["squidbot_chanel_up == 0", 'squidbot_queue_rows{stat="dead"} > 0', "rate(squidbot_turns[5m])"]
)
def test_a_misspelt_query_would_be_found(query):
    """The check above can fail."""
    assert unknown(query)


def test_every_metric_has_a_use():
    """What nobody looks at is in neither rules nor dashboard; there is little of it, and it is named here."""
    asked = " ".join(queries())
    unused = {name for name in ours() if name not in asked}
    assert unused == {"squidbot_acks_total", "squidbot_consolidations_total"}


def test_every_alert_says_what_to_do():
    """A summary, an action and how bad it is; the expression has no name of a person."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert len(rule["annotations"]["action"]) > 20
    tested = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    assert {one["alertname"] for test in tested for one in test["alert_rule_test"]} == {
        rule["alert"] for rule in rules
    }


def test_the_dashboard_is_whole():
    """Panels have ids of their own, a place of their own, and the data source that one chooses."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & places, panel["title"]
        places |= mine
        assert panel["datasource"]["uid"] == "${datasource}"


def test_a_channel_s_account_and_troubles_are_no_labels():
    """Of a channel its name is told, and not the addresses and sentences that its status holds."""
    canary = "c4n4ry@person.example"
    status = ChannelStatus("test-canary", canary, LinkState.DOWN, EPOCH, detail=canary, last_error=canary)
    metrics.show_channels([status])
    told = metrics.exposition().decode()
    assert 'squidbot_channel_up{channel="test-canary"} 0.0' in told
    assert "c4n4ry" not in told
    metrics.CHANNEL_UP.remove("test-canary")
