"""asv's machine file, generated, so that two runs on one machine always land in one series."""

import json
import os
from pathlib import Path

import click


def write(path: str | None = None) -> str:
    """Add this machine to the file at `path` (default: asv's own); returns the machine's name."""
    from asv.machine import MachineCollection

    from perf.harness.device import machine

    found = machine()
    target = Path(path or MachineCollection.get_machine_file_path())
    try:
        known = json.loads(target.read_text()) if target.exists() else {}
        known |= {found["machine"]: found, "version": MachineCollection.api_version}
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        aside.write_text(json.dumps(known, indent=4) + "\n")
        aside.replace(target)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot update the machine file {target}: {error}") from None
    click.echo(f"{target}: this machine is {found['machine']}")
    if len(known) > 2:
        click.echo(f"The file names other machines too: run asv with --machine {found['machine']}")
    return found["machine"]
