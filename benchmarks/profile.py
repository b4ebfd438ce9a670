"""The cost of a profile: CPU time of `curate profile` on rows of 8 KB, beside a plain DuckDB scan of the same columns.

    python benchmarks/profile.py                          20,000 and 80,000 rows
    python benchmarks/profile.py --quick                  5,000 and 20,000 rows
    python benchmarks/profile.py --sizes 100000 500000    as the docs quote it

Shards are made from the source and the docstrings of installed Python packages, so that words, code and prose are real; 77% of
rows are code, 5% repeat an earlier prompt with small changes; a prompt is a sixth of its row. Each size is profiled from nothing
and then once more with nothing new. CPU time is user + system of the whole process tree, memory the largest process. The last
line is one JSON object. What a row costs is the difference between the two largest sizes, so that starting processes and
importing libraries (`fixed_cpu_s`) is neither counted per row nor left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

ROW_BYTES = 8192
SHARD_ROWS = 500
TARGET_ROWS = 902_087
"""Rows of the corpus whose census began this project: 1,805 shards, 77% of them code."""

CODE_FRAC = 0.77
REPEATED_FRAC = 0.05

DUCKDB_SCAN = """
import duckdb, sys
duckdb.sql("set threads = " + sys.argv[2])
print(duckdb.sql('''
    select source, domain, finish_reason, count(*), sum(strlen(completion)), sum(strlen(messages)),
           quantile_cont(strlen(completion), [0.05, 0.5, 0.95])
    from read_json(''' + repr(sys.argv[1] + "/*.jsonl") + ''', format = 'newline_delimited', maximum_object_size = 67108864, columns = {
        id: 'VARCHAR', source: 'VARCHAR', domain: 'VARCHAR', messages: 'VARCHAR', completion: 'VARCHAR', finish_reason: 'VARCHAR'})
    group by all order by all''').fetchall()[:1])
"""


def main() -> None:
    """Print a line per size and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 80_000])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    texts = Texts()
    measured = []
    for size in [5_000, 20_000] if given.quick else sorted(given.sizes):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            num_bytes = make_shards(folder, size, texts)
            measured.append(measure(folder, size, num_bytes, given.workers))
    print(json.dumps(summary(measured)))


class Texts:
    """Real code and real prose, in pieces to make rows of."""

    def __init__(self, most_files: int = 600) -> None:
        import numpy
        import pydantic

        roots = [Path(module.__file__ or "").parent for module in (ast, numpy, pydantic)]
        files = [path for root in roots for path in sorted(root.rglob("*.py")) if "test" not in path.parts]
        random.Random(0).shuffle(files)
        self.code: list[str] = []
        self.prose: list[str] = []
        for path in files[:most_files]:
            try:
                text = path.read_text(encoding="utf-8")
                tree = ast.parse(text)
            except (SyntaxError, UnicodeDecodeError):
                continue
            self.code += [text[at : at + 1500] for at in range(0, len(text), 1500)]
            said = [
                ast.get_docstring(node)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
            ]
            self.prose += [text for text in said if text and len(text) > 80]

    def draw(self, pieces: list[str], size: int, seed: random.Random) -> str:
        """Return about `size` characters of pieces put together."""
        drawn: list[str] = []
        while sum(map(len, drawn)) < size:
            drawn.append(seed.choice(pieces))
        return "\n\n".join(drawn)[:size]


def make_shards(folder: Path, num_rows: int, texts: Texts) -> int:
    """Write shards of rows of about `ROW_BYTES`; return their bytes."""
    seed = random.Random(num_rows)
    rows = made_rows(num_rows, texts, seed)
    total = 0
    for index in range((num_rows + SHARD_ROWS - 1) // SHARD_ROWS):
        lines = b"".join(orjson.dumps(row) + b"\n" for row, _ in zip(rows, range(SHARD_ROWS), strict=False))
        total += (folder / f"completions_{index:06d}.jsonl").write_bytes(lines)
    return total


def made_rows(num_rows: int, texts: Texts, seed: random.Random) -> Iterator[dict[str, Any]]:
    """Yield rows: a question with some context, and a long answer."""
    asked: list[str] = []
    for number in range(num_rows):
        code = seed.random() < CODE_FRAC
        if asked and seed.random() < REPEATED_FRAC:
            prompt = seed.choice(asked) + " Please."
        else:
            prompt = f"Explain this and improve it, attempt {number}.\n\n" + texts.draw(
                texts.prose, seed.randint(200, 2400), seed
            )
            asked = [*asked[-999:], prompt]
        body = texts.draw(texts.code if code else texts.prose, ROW_BYTES - len(prompt) - 700, seed)
        yield {
            "id": f"{number:032x}",
            "source": f"source_{number % 7}",
            "domain": "code" if code else "chat",
            "messages": [{"role": "user", "content": prompt}],
            "completion": f"Here it is.\n\n```python\n{body}\n```" if code else body,
            "reasoning": None,
            "finish_reason": "length" if seed.random() < 0.03 else "stop",
            "seed": number,
        }


def measure(folder: Path, num_rows: int, num_bytes: int, workers: int) -> dict[str, float]:
    """Profile the shards and scan them with DuckDB; return the figures of one size."""
    curate = [sys.executable, "-m", "curation.cli", "profile", str(folder), "--workers", str(workers)]
    for path in folder.glob("*.jsonl"):
        path.read_bytes()  # every run finds the files in the page cache
    scan = [spent([sys.executable, "-c", DUCKDB_SCAN, str(folder), str(workers)]) for _ in range(3)]
    first = spent(curate)
    again = spent(curate)
    found = {
        "rows": num_rows,
        "bytes": num_bytes,
        "cpu_s": first["cpu_s"],
        "wall_s": first["wall_s"],
        "peak_mb": first["peak_mb"],
        "again_cpu_s": again["cpu_s"],
        "duckdb_cpu_s": min(run["cpu_s"] for run in scan),
        "duckdb_peak_mb": min(run["peak_mb"] for run in scan),
    }
    print(
        f"{num_rows:>9,} rows, {num_bytes / 1e9:.2f} GB: profile {found['cpu_s']:.1f} CPU-s ({found['cpu_s'] / num_rows * 1e6:.0f} us a row, "
        f"{num_bytes / 1e6 / found['cpu_s']:.0f} MB per CPU-s, wall {found['wall_s']:.1f} s, {found['peak_mb']:.0f} MB); again {found['again_cpu_s']:.1f} CPU-s; "
        f"DuckDB scan {found['duckdb_cpu_s']:.1f} CPU-s"
    )
    return found


def spent(command: list[str]) -> dict[str, float]:
    """Run a command; return its CPU and wall time and the memory of its largest process."""
    begun = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(
        process.pid, 0
    )  # of this tree alone, where getrusage has the largest of all runs so far
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    wall_s = time.perf_counter() - begun
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall_s, "peak_mb": usage.ru_maxrss / 1024}


def summary(measured: list[dict[str, float]]) -> dict[str, Any]:
    """Extrapolate to `TARGET_ROWS` from the two largest sizes; a single size counts its start-up as if it grew with the rows."""
    last = measured[-1]
    per_row, fixed = line_through(measured, "cpu_s")
    scan_per_row, _ = line_through(measured, "duckdb_cpu_s")
    return {
        "cpu_min_for_902087_rows": round((fixed + per_row * TARGET_ROWS) / 60, 3),
        "fixed_cpu_s": round(fixed, 2),
        "marginal_cpu_us_per_row": round(per_row * 1e6, 1),
        "marginal_cpu_s_per_gb": round(per_row * last["rows"] / last["bytes"] * 1e9, 1),
        "profile_over_duckdb_scan": round(last["cpu_s"] / last["duckdb_cpu_s"], 2),
        "marginal_profile_over_duckdb_scan": round(per_row / scan_per_row, 2),
        "cpu_us_per_row": round(last["cpu_s"] / last["rows"] * 1e6, 1),
        "again_over_first": round(last["again_cpu_s"] / last["cpu_s"], 4),
        "peak_mb": round(max(run["peak_mb"] for run in measured)),
        "sizes": measured,
    }


def line_through(measured: list[dict[str, float]], figure: str) -> tuple[float, float]:
    """Return (growth of a figure per row, its value at no rows) from the two largest sizes; from one, a line through zero."""
    last = measured[-1]
    if len(measured) == 1:
        return last[figure] / last["rows"], 0.0
    previous = measured[-2]
    per_row = (last[figure] - previous[figure]) / (last["rows"] - previous["rows"])
    return per_row, last[figure] - per_row * last["rows"]


if __name__ == "__main__":
    main()
