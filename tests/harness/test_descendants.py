"""What a measuring process leaves running ends with it."""

import contextlib
import os
import select
import sys

import pytest

from perf.harness.json_process import JsonProcess

DAEMON = """
import json, os, signal
print(json.dumps({"pid": os.getpid()}), flush=True)
signal.pause()
"""
LEAVES_A_DAEMON = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {DAEMON!r}], start_new_session=bool(sys.argv[1:]))
"""


@pytest.mark.parametrize("arguments", [[], ["in a session of its own"]])
def test_a_process_that_outlives_its_parent_is_ended(arguments: list[str]) -> None:
    with contextlib.closing(JsonProcess([sys.executable, "-c", LEAVES_A_DAEMON, *arguments])) as process:
        reply = process.reply()
        assert reply
        daemon = os.pidfd_open(reply["pid"])
        process.end(60)
        assert not select.select([daemon], [], [], 0)[0], "it ended by itself"
    assert select.select([daemon], [], [], 60)[0], "it is still there"
    os.close(daemon)


def test_another_process_s_descendants_live_on() -> None:
    endless = [sys.executable, "-c", "import signal; signal.pause()"]
    with contextlib.closing(JsonProcess(endless)) as other:
        JsonProcess(endless).close()
        assert other.is_running()
