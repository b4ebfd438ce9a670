"""What all four commands do alike."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest


@pytest.mark.parametrize("command", ["datagen", "curate", "train", "drafter"])
def test_a_reader_that_has_enough_is_no_error(command: str) -> None:
    entry = entry_points(group="console_scripts")[command]
    said = subprocess.Popen(
        [sys.executable, "-c", f"from {entry.module} import {entry.attr} as run; run()", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert said.stdout is not None and said.stderr is not None
    said.stdout.close()  # as `| head` does, before the first line here
    assert said.wait(timeout=120) == 0
    assert said.stderr.read() == ""
