"""The sides of `tests/transport`, on GPUs."""

from tests.transport.conftest import start_side

__all__ = ["start_side"]
