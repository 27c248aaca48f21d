"""`python -m benchmarks`: the figures of the README, on this machine."""

from __future__ import annotations

import click
import uvloop

from benchmarks.micro import ingress, route


@click.command()
@click.option("--rounds", default=2000, show_default=True, help="Routes timed in each case.")
@click.option("--seconds", default=5.0, show_default=True, help="Of each arrival rate.")
@click.option("--largest", default=1_000_000, show_default=True, help="Pages of the largest table.")
def main(rounds: int, seconds: float, largest: int) -> None:
    """Print what a route costs beside a no-op call, and how long an answer takes to begin."""
    click.echo("Route, beside an FCALL that does nothing (same server, AOF everysec, unix socket)")
    uvloop.run(route.measure(rounds, largest, seed=0))
    click.echo("Ingress to first byte, one lmpoold, one worker without a model")
    uvloop.run(ingress.measure((100.0, 1000.0, 5000.0), seconds))


if __name__ == "__main__":
    main()
