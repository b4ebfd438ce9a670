"""The program that ends an engine's processes when the run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from datagen.engines import sentinel

PARENT = """
import subprocess, sys, time
sentinel = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(float(sys.argv[3]))
sentinel.communicate(b"done")
"""


def start(lives_s: float) -> tuple[subprocess.Popen[str], int]:
    """Start a parent with a sentinel and a child that sleeps; return it and the child's number."""
    program = PARENT.replace("sys.argv[2]", "str(__import__('os').getpid())")
    command = [sys.executable, "-c", program, sentinel.__file__, "", str(lives_s)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.chaos
def test_children_of_a_killed_parent_are_ended() -> None:
    parent, child = start(lives_s=600)
    time.sleep(4 * sentinel.LOOK_S)
    parent.kill()
    parent.wait()
    while is_alive(child):  # the suite's time limit is the bound
        time.sleep(0.05)


def test_a_parent_that_ends_in_order_keeps_its_children() -> None:
    parent, child = start(lives_s=4 * sentinel.LOOK_S)
    assert parent.wait() == 0
    assert is_alive(child)
    os.kill(child, signal.SIGKILL)
