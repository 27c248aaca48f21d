"""deploy/: manifests that the API's schemas accept, and that name what is there."""

import re

import kubernetes_validate
import pytest
import yaml

from lmpoold.protocol.roles import ADMIN, ROLES, acl_file
from tests.house.command_line import SCRIPTS, check_line
from tests.house.test_compose import SERVICES
from tests.house.tree import ROOT, text_of

DEPLOY = ROOT / "deploy"
SCHEMAS = ("1.28", "1.31", kubernetes_validate.latest_version().rpartition(".")[0])
OVERLAYS = ("cpu", "gpu")


def documents(folder):
    """The manifests of a folder, by file name; its kustomization aside."""
    for file in sorted((DEPLOY / folder).glob("*.yaml")):
        if file.name != "kustomization.yaml":
            for row in yaml.safe_load_all(text_of(file)):
                yield pytest.param(row, id=f"{folder}: {row['kind']} {row['metadata']['name']}")


def kustomization(folder):
    return yaml.safe_load(text_of(DEPLOY / folder / "kustomization.yaml"))


MANIFESTS = [param for folder in ("base", *OVERLAYS) for param in documents(folder)]
WORKLOADS = [param for param in MANIFESTS if "template" in param.values[0]["spec"]]
CONTAINERS = [
    pytest.param(pod["spec"]["template"]["spec"], one, id=f"{param.id}: {one['name']}")
    for param in WORKLOADS
    for pod in param.values
    for group in ("initContainers", "containers")
    for one in pod["spec"]["template"]["spec"].get(group, ())
]
PODS = [param.values[0]["spec"]["template"] for param in WORKLOADS]


def probes(one):
    return [one[name] for name in one if name.endswith("Probe")]


def lines():
    for param in CONTAINERS:
        one = param.values[1]
        for command in (one["command"], *(probe["exec"]["command"] for probe in execs(one))):
            if command[0] in SCRIPTS:
                yield pytest.param(command, id=f"{param.id}: {' '.join(command[:2])}")


def execs(one):
    return [probe for probe in probes(one) if "exec" in probe]


@pytest.mark.parametrize("version", SCHEMAS)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_is_one_of_the_apis(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_refuse_a_field_that_is_not_there():
    (pod, *_) = [param.values[0] for param in WORKLOADS]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**pod, "spec": {**pod["spec"], "replica": 1}}, "1.31", True)


@pytest.mark.parametrize("folder", ["base", *OVERLAYS])
def test_a_kustomization_takes_every_manifest_of_its_folder(folder):
    rows = kustomization(folder)
    here = {file.name for file in (DEPLOY / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert set(rows["resources"]) - {"../base"} == here
    assert folder == "base" or "../base" in rows["resources"]
    assert rows["namespace"] == "lmpool"


@pytest.mark.parametrize("line", list(lines()))
def test_a_command_line_of_a_manifest_has_no_option_that_its_help_lacks(line):
    check_line(line)


@pytest.mark.parametrize(("pod", "one"), CONTAINERS)
def test_no_container_may_gain_rights_or_write_outside_its_volumes(pod, one):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert one["securityContext"]["allowPrivilegeEscalation"] is False
    assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("pod", "one"), CONTAINERS)
def test_a_container_mounts_volumes_that_its_pod_has(pod, one):
    claims = {"data"} if one["name"] == "redis" else set()
    there = {volume["name"] for volume in pod["volumes"]} | claims
    assert {mount["name"] for mount in one["volumeMounts"]} <= there


def test_what_is_probed_is_what_compose_probes():
    health = {name: SERVICES[name]["healthcheck"]["test"] for name in SERVICES if name != "model"}
    found = {}
    for param in CONTAINERS:
        one = param.values[1]
        if "livenessProbe" in one:
            probe = one["livenessProbe"]
            found[one["name"]] = probe.get("exec") or probe["httpGet"]
            assert "startupProbe" in one
    assert found["lmpoold"]["command"] == health["lmpoold"][1:]
    for name in ("worker", "gpu-0", "gpu-1"):
        assert found[name]["command"] == health["worker-0"][1:]
    assert found["gateway"]["path"] in health["gateway"][-1]
    ping = found["redis"]["command"]
    assert (ping[0], ping[-1]) == tuple(health["redis"][1:])


def test_the_servers_settings_are_those_of_compose():
    (redis,) = (param.values[1] for param in CONTAINERS if param.values[1]["name"] == "redis")
    words = redis["command"][1:]
    ours = dict(zip(words[::2], words[1::2], strict=True))
    words = SERVICES["redis"]["command"][1:]
    assert dict(zip(words[::2], words[1::2], strict=True)).items() <= ours.items()


def test_secrets_are_referred_to_by_names_that_the_instructions_make_and_by_roles():
    told = text_of(DEPLOY / "base" / "kustomization.yaml")
    made = set(re.findall(r"create secret generic (\S+)", told))
    users = acl_file("default", dict.fromkeys([*ROLES, ADMIN], "x"))
    for param in CONTAINERS:
        pod, one = param.values
        named = {row["secret"]["secretName"] for row in pod["volumes"] if "secret" in row}
        for row in one.get("env", ()):
            if reference := row.get("valueFrom", {}).get("secretKeyRef"):
                named.add(reference["name"])
                assert reference["key"] in ROLES
            elif "://" in row.get("value", ""):
                user = row["value"].partition("://")[2].partition(":")[0]
                assert f"user {user} " in users
                assert "$(PASSWORD)@" in row["value"]
        assert named <= made


def test_ranks_are_one_a_worker_and_metrics_are_shown_where_they_are_looked_for():
    ranks = {}
    for param in CONTAINERS:
        one = param.values[1]
        line = one["command"]
        if "--metrics-port" in line:
            port = int(line[line.index("--metrics-port") + 1])
            assert [row["containerPort"] for row in one["ports"]] == [port]
            assert line[line.index("--metrics-host") + 1] == "0.0.0.0"
        if "--rank" in line:
            rank, device = (line[line.index(name) + 1] for name in ("--rank", "--device"))
            ranks[rank] = device
    assert ranks == {"0": "cuda:0", "1": "cuda:1"}
    for pod in PODS:
        if told := pod["metadata"].get("annotations"):
            ports = [row["containerPort"] for row in pod["spec"]["containers"][0]["ports"]]
            assert int(told["prometheus.io/port"]) in ports


def test_policies_and_services_choose_pods_that_are_there():
    labels = [pod["metadata"]["labels"] for pod in PODS]
    for param in MANIFESTS:
        spec = param.values[0]["spec"]
        match param.values[0]["kind"]:
            case "NetworkPolicy":
                wanted = spec["podSelector"]["matchLabels"]
            case "Service":
                wanted = spec["selector"]
            case _:
                wanted = spec["selector"]["matchLabels"]
        assert any(wanted.items() <= row.items() for row in labels)
