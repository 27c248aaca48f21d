"""compose.yaml and Dockerfile: what they name exists, and what they promise is written there."""

import re

import pytest
import yaml

from tests.house.command_line import SCRIPTS, check_line
from tests.house.tree import ROOT, text_of

COMPOSE = yaml.safe_load(text_of(ROOT / "compose.yaml"))
SERVICES = COMPOSE["services"]
DOCKERFILE = text_of(ROOT / "Dockerfile")
DEFAULT = re.compile(r"\$\{(\w+):-([^}]*)\}")
HEALTHS = [name for name in SERVICES if name != "model"]


def filled(word, **environ):
    """A word as compose would read it."""
    return DEFAULT.sub(lambda match: environ.get(match[1]) or match[2], word)


def command_lines():
    for name, service in SERVICES.items():
        lines = [service["command"]]
        if "healthcheck" in service:
            lines.append(service["healthcheck"]["test"][1:])
        for line in lines:
            if line[0] in SCRIPTS:
                yield pytest.param([filled(word) for word in line], id=f"{name}: {line[0]}")


@pytest.mark.parametrize("line", list(command_lines()))
def test_a_command_line_of_compose_has_no_option_that_its_help_lacks(line):
    check_line(line)


def test_the_pool_of_compose_is_the_one_the_front_page_promises():
    assert set(SERVICES) == {
        *("redis", "model", "lmpoold", "gateway"),
        *("worker-0", "worker-1", "gpu-0", "gpu-1", "prometheus"),
    }
    assert SERVICES["lmpoold"]["deploy"]["replicas"] == 2
    server = SERVICES["redis"]["command"]
    settings = dict(zip(server[1::2], server[2::2], strict=True))
    assert settings["--appendonly"] == "yes"
    assert settings["--maxmemory-policy"] == "noeviction"
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


def test_gpu_workers_have_a_profile_a_device_each_and_the_hosts_ipc():
    gpus = {name: row for name, row in SERVICES.items() if row.get("profiles") == ["gpu"]}
    assert set(gpus) == {"gpu-0", "gpu-1"}
    devices = set()
    for row in gpus.values():
        assert row["ipc"] == "host"
        (device,) = row["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        devices.add(row["command"][row["command"].index("--device") + 1])
    assert devices == {"cuda:0", "cuda:1"}
    parted = {name for name, row in SERVICES.items() if "profiles" in row}
    assert parted - set(gpus) == {"prometheus"}
    assert SERVICES["prometheus"]["profiles"] == ["metrics"]


@pytest.mark.parametrize("name", HEALTHS)
def test_every_service_that_stays_has_a_health_check(name):
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_may_gain_rights_or_write_outside_its_volumes(name):
    row = SERVICES[name]
    assert row["read_only"] is True
    assert row["cap_drop"] == ["ALL"]
    assert row["security_opt"] == ["no-new-privileges:true"]


def test_a_worker_is_reached_by_the_others_under_its_services_name():
    for name, row in SERVICES.items():
        line = row["command"]
        if "--rank" in line:
            assert line[line.index("--transfer-host") + 1] == name


def test_prometheus_looks_at_every_lmpoold_worker_and_gateway_where_they_show_figures():
    scrapes = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"]
    looked = {}
    for job in scrapes:
        for found in job.get("dns_sd_configs", ()):
            looked |= dict.fromkeys(found["names"], found["port"])
        for group in job.get("static_configs", ()):
            looked |= {name: int(port) for name, port in (t.split(":") for t in group["targets"])}
    shown = {}
    for name, row in SERVICES.items():
        line = row["command"]
        if "--metrics-port" in line:
            assert line[line.index("--metrics-host") + 1] == "0.0.0.0"
            shown[name] = int(line[line.index("--metrics-port") + 1])
        elif line[0] == "lmpool-gateway":
            shown[name] = int(line[line.index("--port") + 1])
    assert looked == shown


def test_what_services_depend_on_and_mount_and_build_exists():
    stages = set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for row in SERVICES.values():
        assert set(row.get("depends_on", ())) <= set(SERVICES)
        for mount in row.get("volumes", ()):
            assert mount.partition(":")[0] in COMPOSE["volumes"]
        if "build" in row:
            assert row["build"]["target"] in stages


@pytest.mark.parametrize("stage", ["control", "worker"])
def test_an_image_runs_as_nobody_in_particular(stage):
    _, _, rest = DOCKERFILE.partition(f" AS {stage}\n")
    body = rest.partition("\nFROM ")[0]
    assert "USER lmpool" in body
    assert (program := re.search(r'^CMD \["(\S+)"\]', body, re.MULTILINE))
    assert program[1] in SCRIPTS


def test_the_images_packages_come_before_their_sources_and_from_the_lock():
    packages = DOCKERFILE.partition(" AS control-build")[0]
    assert "COPY lmpoold" not in packages
    assert packages.count("-c requirements.lock") == 2
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE))
    for name in {word for line in copied for word in line.split()}:
        assert (ROOT / name).exists()
        assert f"!{name}" in text_of(ROOT / ".dockerignore").splitlines()
