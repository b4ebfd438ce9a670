"""Ends an engine's processes when the run that started them is killed: a separate program, started by file name.

A run that dies by SIGKILL can clean nothing up, and vLLM's engine process would live on with the GPU's memory, so that
resuming fails. This program reads its standard input, a pipe that the run holds open: end of file means that the run is
gone. Until then it remembers the run's descendants, told from later ones with the same number by their start time.
"""

import os
import select
import signal
import sys
from pathlib import Path

LOOK_S = 0.5


def main(parent: int) -> None:
    """Watch until the pipe closes, then kill what is left of the parent's descendants."""
    children: dict[int, str] = {}
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        families = {parent, *children}
        children |= {pid: started for pid, (its_parent, started) in _processes().items() if its_parent in families}
    if sys.stdin.read():  # any word means that the run ends in order, and has ended its children itself
        return
    alive = _processes()
    for pid, started in children.items():
        if pid != os.getpid() and pid in alive and alive[pid][1] == started:
            os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, str]]:
    """Return parent and start time of every process by its number (proc(5))."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(entry.name)] = (int(fields[1]), fields[19])
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
