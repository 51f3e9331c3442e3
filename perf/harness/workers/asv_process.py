"""Entry script of asv's own processes: `python asv_process.py SCRIPT ARGUMENT..` runs the script until asv ends.

Otherwise the fork server of a killed asv would wait for ever, and its measurement would continue.
"""

import runpy
import sys


def main() -> None:
    """Run the script as the main program."""
    from measuring import die_with_parent, end_on_signals  # type: ignore[import-not-found]  # the script beside this one

    die_with_parent()
    end_on_signals()  # asv sends SIGTERM, and a second later SIGKILL
    del sys.path[0]  # this folder
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
