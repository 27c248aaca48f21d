"""Asks this host which of its GPUs have direct links: NVML, or `nvidia-smi` where that is missing.

Behind a switch every link ends at the switch, so a link's far end does not name a peer. What does
is NVML's verdict on the pair: whether peer-to-peer over NVLink works between them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from contextlib import suppress
from typing import Any

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.topology import Connection, Gpu, Topology, parse_matrix, parse_pairs

log = logging.getLogger(__name__)

SMI_TIMEOUT_S = 20.0


def read_topology(pairs: str = "") -> Topology:
    """Return this host's topology; `pairs` (as for `parse_pairs`) takes the place of asking.

    Raises: ConfigError: neither NVML nor `nvidia-smi` answers.
    """
    if pairs:
        return parse_pairs(pairs)
    try:
        return read_nvml()
    except ConfigError as nvml_error:
        try:
            return read_smi()
        except ConfigError as smi_error:
            raise ConfigError(
                f"no topology: {nvml_error}; {smi_error}; name the pairs by hand (--pairs 0-1)"
            ) from None


def read_smi() -> Topology:
    """Return what `nvidia-smi topo -m` says.

    Raises: ConfigError: it is not there, fails, or prints something else.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"nvidia-smi does not run: {error}") from None
    if done.returncode != 0:
        raise ConfigError(f"nvidia-smi topo -m failed: {(done.stderr or done.stdout).strip()}")
    return parse_matrix(done.stdout)


def read_nvml() -> Topology:
    """Return what NVML says.

    Raises: ConfigError: nvidia-ml-py or the driver's library is not there.
    """
    try:
        import pynvml
    except ImportError:
        raise ConfigError("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ConfigError(f"NVML does not answer: {error}") from None
    try:
        return _read(pynvml)
    except pynvml.NVMLError as error:
        raise ConfigError(f"NVML failed: {error}") from None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read(nvml: Any) -> Topology:
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
    gpus = tuple(
        Gpu(at, _text(nvml.nvmlDeviceGetUUID(one)), _text(nvml.nvmlDeviceGetName(one)))
        for at, one in enumerate(handles)
    )
    busses = [_text(nvml.nvmlDeviceGetPciInfo(one).busId).lower() for one in handles]
    ends = [_far_ends(nvml, one) for one in handles]
    connections = []
    for low, one in enumerate(handles):
        for high in range(low + 1, len(handles)):
            if not _reachable(nvml, one, handles[high]):
                continue
            direct = ends[low].count(busses[high])
            links = direct or min(len(ends[low]), len(ends[high]))
            gb_s = links * _link_mb_s(nvml, one) / 1000
            connections.append(Connection(low, high, links=links, gb_s=gb_s))
    return Topology("nvml", gpus, tuple(connections))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _reachable(nvml: Any, one: Any, other: Any) -> bool:
    """Whether NVML says that the pair's peer-to-peer over NVLink works."""
    index = ctypes.c_uint(nvml.NVML_P2P_CAPS_INDEX_NVLINK)  # some releases do not convert it
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(one, other, index) == nvml.NVML_P2P_STATUS_OK)
    except nvml.NVMLError as error:
        log.debug("no P2P status", extra={"why": str(error)})
        return False


def _far_ends(nvml: Any, handle: Any) -> list[str]:
    """Return the PCI bus id at the far end of each active link (a switch's says nothing)."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
                continue
            ends.append(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower())
        except nvml.NVMLError:
            continue  # the GPU has fewer links
    return ends


def _link_mb_s(nvml: Any, handle: Any) -> float:
    """Return the limit of one link in one direction, 0.0 where NVML does not say."""
    try:
        field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_GET_SPEED])[0]
    except (nvml.NVMLError, AttributeError):
        return 0.0
    return float(field.value.uiVal) if field.nvmlReturn == nvml.NVML_SUCCESS else 0.0


def visible_setting() -> str | None:
    """Return this process's CUDA_VISIBLE_DEVICES, None when it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
