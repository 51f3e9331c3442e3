"""`python -m perf`: the commands of the suite that asv does not have."""

try:
    from perf.git import forget_the_caller
    from perf.options import Commands
except ModuleNotFoundError as error:
    raise SystemExit(f"Error: {error}; allowed: after pip install -e '.[dev]'") from None

MODULES = {
    "accept": "perf.commands.accept",
    "case": "perf.commands.case",
    "demo": "perf.commands.demo",
    "doctor": "perf.commands.doctor",
    "gate": "perf.commands.gate",
    "machine": "perf.commands.machine",
    "machine-code": "perf.commands.machine_code",
    "measured": "perf.commands.measured",
    "merge": "perf.commands.merge",
    "missed": "perf.commands.missed",
    "mutations": "perf.commands.mutations",
    "report": "perf.commands.report",
    "select": "perf.commands.select_cases",
    "self-test": "perf.commands.self_test",
    "simulate": "perf.commands.simulate",
    "study": "perf.studies",
}
"""Each command with the module that holds it as `command`."""

main = Commands(
    MODULES,
    help="""Performance of cs336_systems, commit by commit.

    Measuring and publishing are asv's own commands (`asv run`, `asv publish`); these come on top.
    """,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


if __name__ == "__main__":
    forget_the_caller()
    main()
