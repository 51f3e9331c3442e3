"""`python -m perf machine`: generate asv's machine file, so that all runs on a machine share their series."""

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from perf.files import replace_file, set_aside
from perf.machines import machine_file
from perf.stored import read_object


def write(path: str | None = None) -> str:
    """Add this machine to the file at `path` (default: asv's own); return the machine's name.

    An invalid machine file is set aside. Raises `click.ClickException` if the file cannot be written.
    """
    from asv.machine import MachineCollection

    from perf.harness.device import machine

    here = machine()
    target = Path(path or machine_file()).resolve()  # a link stays one
    try:
        if target.exists() and not target.is_file():
            raise click.ClickException(f"the machine file {target} was given; allowed: a regular file, or a new one")
        known = _known(target) | {here["machine"]: here, "version": MachineCollection.api_version}
        replace_file(target, (json.dumps(known, indent=4) + "\n").encode())
    except OSError as error:
        raise click.ClickException(f"cannot update the machine file {target}: {error.strerror}") from None
    click.echo(f"{target}: this machine is {here['machine']}")
    if len(known) > 2:
        click.echo(f"The file names other machines too: run asv with --machine {here['machine']}")
    return here["machine"]


def known_machines() -> set[str]:
    """Return the names in asv's machine file. Raises `ValueError` with one line if it cannot be read."""
    path = machine_file()
    try:
        return read_object(path).keys() - {"version"}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{path} cannot be read ({reason}); python -m perf machine writes it") from None


def _known(path: Path) -> dict[str, Any]:
    """Return the machines in the file; {} without a file. An invalid file is renamed to *.broken."""
    if not path.exists():
        return {}
    with contextlib.suppress(ValueError):
        known = read_object(path)
        if all(isinstance(known[name], dict) for name in known if name != "version"):
            return known
    click.echo(f"{path} was not a machine file of asv's; it is {set_aside(path).name} now", err=True)
    return {}


@click.command("machine")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Instead of asv's ~/.asv-machine.json.")
@click.option("--name", "names_it", is_flag=True, help="Print the machine's name alone, and write nothing.")
def command(path: str | None, names_it: bool) -> None:
    """Write asv's machine file for this machine.

    The name comes from the GPU's model and count, or the CPU's model without a GPU. Values that change over a machine's
    life are left out, because each value in the file is part of a series' identity.
    """
    if names_it:
        from perf.harness.device import machine

        click.echo(machine()["machine"])
    else:
        write(path)
