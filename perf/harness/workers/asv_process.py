"""Entry script of asv's own processes: `python asv_process.py SCRIPT ARGUMENT..` runs that script until asv ends.

Its fork server would else wait for ever for an asv that was killed, and what was being measured go on for nobody.
"""

import runpy
import sys


def main() -> None:
    """Run the script as if it had been started itself."""
    from single import die_with_parent  # type: ignore[import-not-found]  # the script beside this one

    die_with_parent()
    del sys.path[0]  # this folder
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
