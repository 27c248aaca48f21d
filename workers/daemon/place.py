"""Where this worker's GPU is among those of its host: what the pool's links follow from."""

from __future__ import annotations

import logging

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.topology import place_of, visible
from lmpoold.shell.links import read_topology, visible_setting

log = logging.getLogger(__name__)


def gpu_place(device: str) -> dict[str, str]:
    """Return `gpu` and `near` as `place_of` does; nothing on a CPU, or where nobody can say.

    Args:
        device: `cpu` or `cuda:<ordinal>`, as this process counts.
    """
    kind, _, ordinal = device.partition(":")
    if kind != "cuda":
        return {}
    try:
        topology = read_topology()
        return place_of(topology, visible(topology.gpus, visible_setting()), int(ordinal or 0))
    except ConfigError as error:
        log.warning("direct links are not known", extra={"why": str(error)})
        return {}
