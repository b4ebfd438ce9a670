"""Near-duplicate removal against datasketch, in one run, on text whose duplicates are planted.

Passages are cut from the Python files of this environment; beyond what there is, their letters are rotated, which gives
other words of the same lengths. About a third of the rows are variants of earlier passages: copies, re-spaced, truncated,
prefixed, with paragraphs swapped, or with 0.2% to 20% of their words edited. The true similarity of every variant to its
original is counted on sets of word 5-grams by plain Python, after and apart from what is measured.

Both sides use the same bands. Ours hashes, signs, finds, and verifies by exact similarity, in one process. datasketch
signs in bulk on all cores with xxhash (its default SHA-1 is slower), and verifies by estimated similarity. CPU seconds are
user and system time of all processes; memory is the peak resident size of ours.

    python benchmarks/dedupe.py --quick         # 10,000 rows, about a minute
    python benchmarks/dedupe.py                 # 10,000, 100,000 and 500,000 rows
    python benchmarks/dedupe.py --rows 1000000 --ours-only
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from curation.dedupe import DedupeSettings

SETTINGS = DedupeSettings(max_completions_per_prompt=1, max_source_loss=1.0)
NUM_PERM = SETTINGS.bands * SETTINGS.rows_per_band
UNIQUE_FRAC = 0.64
KINDS = ("copy", "respaced", "truncated", "prefixed", "swapped", "edited")
KIND_WEIGHTS = (30, 6, 6, 5, 5, 48)
EDIT_FRACS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class Corpus:
    """Texts in one file, read by position, so that they do not count as memory."""

    def __init__(self, folder: Path) -> None:
        self.ends = np.load(folder / "ends.npy")
        self._file = os.open(folder / "texts", os.O_RDONLY)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __call__(self, rows: np.ndarray) -> Iterator[str]:
        for begin, end in zip(self.ends[rows].tolist(), self.ends[rows + 1].tolist(), strict=True):
            yield os.pread(self._file, end - begin, begin).decode()


def main() -> None:
    """Measure each size, print a table, and the figures of the largest size that both sides ran as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 rows")
    parser.add_argument("--rows", type=int, nargs="+", help="sizes to measure")
    parser.add_argument("--ours-only", action="store_true", help="leave datasketch out")
    args = parser.parse_args()
    sizes = args.rows or ([10_000] if args.quick else [10_000, 100_000, 500_000])
    figures: dict[str, float] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            figures |= measure(Path(name), size, not args.ours_only)
    print(json.dumps(figures))


def measure(folder: Path, num_rows: int, against_datasketch: bool) -> dict[str, float]:
    """Return the figures of one size, and print them."""
    in_own_process(plant, folder, num_rows)
    num_gb = os.path.getsize(folder / "texts") / 1e9
    ours = in_own_process(run_ours, folder)
    figures = {
        "rows": num_rows,
        "gb": round(num_gb, 4),
        "cpu_s": round(ours["cpu_s"], 2),
        "cpu_s_per_gb": round((ours["cpu_s"] - ours["verify_cpu_s"]) / num_gb, 1),
        "sign_cpu_s_per_gb": round(ours["sign_cpu_s"] / num_gb, 1),
        "verify_cpu_s_per_gb": round(ours["verify_cpu_s"] / num_gb, 1),
        "peak_mb": round(ours["peak_mb"]),
        f"cpu_s_at_{num_rows}": round(ours["cpu_s"], 2),
        f"peak_mb_at_{num_rows}": round(ours["peak_mb"]),
    }
    figures |= score(folder, "ours")
    if against_datasketch:
        theirs = in_own_process(run_datasketch, folder)
        figures["datasketch_cpu_s"] = round(theirs["cpu_s"], 2)
        figures["datasketch_peak_mb"] = round(theirs["peak_mb"])
        figures["cpu_ours_over_datasketch"] = round(ours["cpu_s"] / theirs["cpu_s"], 3)
        figures |= {f"datasketch_{name}": value for name, value in score(folder, "datasketch").items()}
    for name, value in figures.items():
        print(f"{name:40} {value:>12,}")
    return figures


def in_own_process(run: Callable[..., Any], *args: Any) -> Any:
    """Run one side alone, so that its CPU time and memory are its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *args).result()


def run_ours(folder: Path) -> dict[str, float]:
    """Hash, sign, and deduplicate; leave (row, kept row, similarity) in `ours.npy`."""
    import polars as pl

    from curation import dedupe
    from curation.facts import ReadingSettings
    from curation.measure import normalised_hash
    from curation.shingles import minhash, shingle_hashes
    from curation.similarity import ShingleSets

    corpus, started = Corpus(folder), cpu_s()
    signatures = np.empty((len(corpus), NUM_PERM), dtype=np.uint32)
    hashes = np.empty(len(corpus), dtype=np.uint64)
    for at in range(0, len(corpus), 256):
        rows = np.arange(at, min(at + 256, len(corpus)))
        texts = list(corpus(rows))
        hashes[rows] = [normalised_hash(text) for text in texts]
        signatures[rows] = minhash(*shingle_hashes(texts), num_perm=NUM_PERM)
    signed = cpu_s()
    facts = pl.DataFrame({"id": np.arange(len(corpus)).astype(str), "prompt_hash": hashes, "completion_hash": hashes})
    facts = facts.with_columns(source=pl.lit("planted"))
    verification = stopwatch(ShingleSets, "jaccard")
    outcome = dedupe.remove(
        facts, np.arange(len(corpus)), signatures, corpus, SETTINGS, ReadingSettings(num_perm=NUM_PERM)
    )
    done = cpu_s()
    np.save(
        folder / "ours.npy", [(drop.row, int(drop.collided_with or 0), drop.score or 0.0) for drop in outcome.dropped]
    )
    return {
        "cpu_s": done - started,
        "sign_cpu_s": signed - started,
        "verify_cpu_s": verification[0],
        "peak_mb": peak_mb(),
    }


def stopwatch(owner: type, method: str) -> list[float]:
    """Count the CPU seconds spent in a method from now on, in the list that is returned."""
    spent, run = [0.0], getattr(owner, method)

    def timed(*args: Any) -> Any:
        started = cpu_s()
        result = run(*args)
        spent[0] += cpu_s() - started
        return result

    setattr(owner, method, timed)
    return spent


def run_datasketch(folder: Path) -> dict[str, float]:
    """Sign in bulk on all cores, then query and insert row by row; leave the same columns in `datasketch.npy`."""
    from datasketch import LeanMinHash, MinHashLSH

    corpus, started = Corpus(folder), cpu_s()
    index = MinHashLSH(num_perm=NUM_PERM, params=(SETTINGS.bands, SETTINGS.rows_per_band))
    kept: dict[int, LeanMinHash] = {}
    dropped = []
    chunks = [(folder, at, min(at + 500, len(corpus))) for at in range(0, len(corpus), 500)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        for (_, first, _), sketches in zip(chunks, pool.map(sketch_in_bulk, chunks), strict=True):
            for row, sketch in enumerate(sketches, first):
                near = [(sketch.jaccard(kept[other]), -other) for other in index.query(sketch)]
                similarity, other = max(near, default=(0.0, 0))
                if similarity >= SETTINGS.threshold:
                    dropped.append((row, -other, similarity))
                else:
                    index.insert(row, sketch, check_duplication=False)
                    kept[row] = sketch
    np.save(folder / "datasketch.npy", dropped)
    return {"cpu_s": cpu_s() - started, "peak_mb": peak_mb()}


def sketch_in_bulk(chunk: tuple[Path, int, int]) -> list:
    """Return datasketch's sketches of rows first..end."""
    import xxhash
    from datasketch import LeanMinHash, MinHash

    folder, first, end = chunk
    sets = []
    for text in Corpus(folder)(np.arange(first, end)):
        words = re.findall(r"\w+", text.lower())
        sets.append({" ".join(words[at : at + 5]).encode() for at in range(max(len(words) - 4, 1))})
    return [LeanMinHash(m) for m in MinHash.bulk(sets, num_perm=NUM_PERM, hashfunc=xxhash.xxh32_intdigest)]


def cpu_s() -> float:
    """Return the user and system time of this process and its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """Return the peak resident size of this process (Linux: of this program alone, not of what started it)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]  # always there


def score(folder: Path, side: str) -> dict[str, float]:
    """Return recall on planted pairs by true similarity, and precision of what was dropped."""
    corpus, dropped = Corpus(folder), np.load(folder / f"{side}.npy").reshape(-1, 3)
    gone = np.zeros(len(corpus), dtype=bool)
    gone[dropped[:, 0].astype(int)] = True
    variant, original, similarity = np.load(folder / "truth.npy").T
    found = gone[variant.astype(int)] | gone[original.astype(int)]
    above, close = (
        similarity >= SETTINGS.threshold,
        (similarity >= SETTINGS.threshold) & (similarity < SETTINGS.threshold + 0.05),
    )
    sample = random.Random(0).sample(range(len(dropped)), min(len(dropped), 5000))
    true = [true_similarity(corpus, int(dropped[at, 0]), int(dropped[at, 1])) for at in sample]
    return {
        "dropped": len(dropped),
        "pairs": int(above.sum()),
        "recall": round(float(found[above].mean()), 5),
        "pairs_close_to_threshold": int(close.sum()),
        "recall_close_to_threshold": round(float(found[close].mean()), 5),
        "precision": round(float((np.array(true) >= SETTINGS.threshold).mean()), 5),
    }


def true_similarity(corpus: Corpus, one: int, other: int) -> float:
    """Return the Jaccard similarity of the word 5-grams of two rows."""
    left, right = (shingles(text) for text in corpus(np.array([one, other])))
    return len(left & right) / len(left | right)


def shingles(text: str) -> set[tuple[str, ...]]:
    """Return the word 5-grams of an ASCII text."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + 5]) for at in range(max(len(words) - 4, 1))}


def plant(folder: Path, num_rows: int) -> None:
    """Write `num_rows` texts in seeded order, and the true similarity of (at most 20,000) variants to their originals."""
    rng = random.Random(0)
    num_unique = round(num_rows * UNIQUE_FRAC)
    passage = passages(num_unique)
    weights = [rng.paretovariate(1.5) for _ in range(num_unique)]
    original_of = [*range(num_unique), *rng.choices(range(num_unique), weights, k=num_rows - num_unique)]
    order = rng.sample(range(num_rows), num_rows)
    ends, row_of = [0], [0] * num_rows
    with (folder / "texts").open("wb") as file:
        for row, what in enumerate(order):
            text = passage(original_of[what])
            if what >= num_unique:
                text = vary(text.decode(), random.Random(what)).encode()
            row_of[what] = row
            ends.append(ends[-1] + file.write(text))
    np.save(folder / "ends.npy", ends)
    corpus = Corpus(folder)
    variants = rng.sample(range(num_unique, num_rows), min(20_000, num_rows - num_unique))
    pairs = [(row_of[what], row_of[original_of[what]]) for what in variants]
    np.save(folder / "truth.npy", [(*pair, true_similarity(corpus, *pair)) for pair in pairs])


def passages(count: int) -> Callable[[int], bytes]:
    """Return a function of 0..count-1 to different ASCII passages of 0.5 to 12 KB, about 3 KB on average."""
    rng = random.Random(1)
    pool: dict[bytes, None] = {}
    for path in sorted(python_files()):
        lines, wanted = [b""], 0.0
        for line in path.read_bytes().split(b"\n"):
            wanted = wanted or min(max(rng.lognormvariate(7.7, 0.7), 500), 12_000)
            lines.append(line)
            if sum(map(len, lines)) >= wanted:
                text = b"\n".join(lines)
                if text.isascii() and len(text) < 20_000 and len(text.split()) >= 30:
                    pool[text] = None
                lines, wanted = [b""], 0.0
    texts = sorted(pool)
    rng.shuffle(texts)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    tables = []
    for by in range(26):
        rotated = letters[by:] + letters[:by]
        tables.append(bytes.maketrans(letters + letters.upper(), rotated + rotated.upper()))
    assert count <= len(tables) * len(texts)
    return lambda at: texts[at % len(texts)].translate(tables[at // len(texts)])


def python_files() -> list[Path]:
    """Return the Python files of the standard library and of the installed packages."""
    roots = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")}
    return [path for path in {path for root in roots for path in root.rglob("*.py")} if path.stat().st_size < 1_000_000]


def vary(text: str, rng: random.Random) -> str:
    """Return a variant of a text, of a kind drawn by KIND_WEIGHTS."""
    (kind,) = rng.choices(KINDS, KIND_WEIGHTS)
    if kind == "copy":
        return text
    if kind == "respaced":
        return "  ".join(text.upper().split())
    if kind == "truncated":
        return text[: round(len(text) * rng.uniform(0.5, 0.98))]
    if kind == "prefixed":
        return "Here is what you asked for, as well as I could make it out:\n" + text
    if kind == "swapped":
        half = len(text) // 2
        return text[half:] + "\n" + text[:half]
    words, frac = text.split(" "), rng.choice(EDIT_FRACS)
    for at in rng.sample(range(len(words)), max(1, round(frac * len(words)))):
        words[at] = rng.choice(("value", "edited", "", f"{words[at]} inserted", "another"))
    return " ".join(words)


if __name__ == "__main__":
    main()
