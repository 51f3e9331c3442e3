"""`python -m perf simulate`: the gate's error rates on recorded noise."""

import click

from perf.harness.progress import TerminalBar
from perf.tables import text_table


@click.command("simulate")
def command() -> None:
    """Apply the gate's rules to thousands of reports drawn from noise recorded on an H200: 5 minutes, no GPU.

    The tables state how often identical code got a false verdict and how often a slow-down was detected, beside asv's
    rule and a plain t-test.
    """
    from perf.gate import simulated_rates  # loads scipy for a second, which --help need not wait for

    click.echo("Thousands of reports drawn from recorded noise: about five minutes", err=True)
    noises = simulated_rates.recorded()
    with TerminalBar(simulated_rates.lines(noises), "line", "simulating") as bar:
        tables = simulated_rates.tables(noises, bar.step)
    for title, rows in tables:
        click.echo(f"\n{title}\n{text_table(rows)}")
