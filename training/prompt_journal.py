"""Prompts that are done, one line each, so that a stopped evaluation goes on where it was.

The file is named after everything that the results depend on; another question starts another file. A line that a kill tore
is cut off, and its prompt is asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


class PromptJournal:
    """What is known of each prompt under fixed conditions."""

    def __init__(self, folder: Path, kind: str, conditions: dict[str, Any]) -> None:
        key = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
        self.path = folder / f".{kind}-{key}.jsonl"
        self.done: dict[str, Any] = {}
        if self.path.is_file():
            whole = [line for line in self.path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            self.path.write_bytes(b"".join(whole))
            self.done = {entry["prompt"]: entry["found"] for entry in map(json.loads, whole)}

    def add(self, prompt_id: str, found: Any) -> None:
        """Note what was found for a prompt; it is on the disk when this returns."""
        self.done[prompt_id] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"prompt": prompt_id, "found": found}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Forget everything: the report is written."""
        self.path.unlink(missing_ok=True)
