"""asv's machine file, generated, so that two runs on one machine always land in one series."""

import json
from pathlib import Path
from typing import Any

import click

from perf.files import replace_file


def write(path: str | None = None) -> str:
    """Add this machine to the file at `path` (default: asv's own); returns the machine's name.

    What is there and no machine file is set aside. Raises `click.ClickException` if nothing can be written.
    """
    from asv.machine import MachineCollection

    from perf.harness.device import machine

    found = machine()
    target = Path(path or MachineCollection.get_machine_file_path())
    try:
        known = _known(target) | {found["machine"]: found, "version": MachineCollection.api_version}
        replace_file(target, (json.dumps(known, indent=4) + "\n").encode())
    except OSError as error:
        raise click.ClickException(f"cannot update the machine file {target}: {error}") from None
    click.echo(f"{target}: this machine is {found['machine']}")
    if len(known) > 2:
        click.echo(f"The file names other machines too: run asv with --machine {found['machine']}")
    return found["machine"]


def _known(path: Path) -> dict[str, Any]:
    """The machines in the file; {} without one, and after one that cannot be read, which is renamed to *.broken."""
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(known, dict) and all(isinstance(one, dict) for name, one in known.items() if name != "version"):
            return known
    except (ValueError, RecursionError):
        pass
    broken = path.with_name(f"{path.name}.broken")
    path.replace(broken)
    click.echo(f"{path} was no machine file of asv's; it is {broken.name} now", err=True)
    return {}


@click.command("machine")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Instead of asv's ~/.asv-machine.json.")
def command(path: str | None) -> None:
    """Write asv's machine file for this machine.

    The name comes from the GPU's model and count (the CPU's model where there is no GPU), and nothing that changes over
    a machine's life is in the file: each of its values is part of a series' identity.
    """
    write(path)
