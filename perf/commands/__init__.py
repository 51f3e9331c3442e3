"""The commands of `python -m perf`, a module each; studies are in `perf.studies`."""
