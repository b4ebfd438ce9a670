"""`curate`: profile completions, and turn them into a balanced, tokenised set.

Heavy imports happen inside the commands, so that `curate --help` is quick. A ValueError is a message for the person at
the keyboard: one line, exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from curation.options import BuildOptions, ExportOptions, PlanOptions

if TYPE_CHECKING:
    from curation.corpus import Corpus

Folder = Annotated[Path, tyro.conf.Positional]

app = tyro.extras.SubcommandApp()


@app.command
def profile(
    folder: Folder = Path("completions_raw"),
    *,
    manifest: str | None = None,
    out: Path | None = None,
    labels: Path | None = None,
    workers: int = 0,
    near_threshold: float = 0.8,
) -> None:
    """What is in a folder of completions: tokens and rows by domain, source and language, duplicates, faults, skew.

    Writes profile.json and profile.html, and prints the same as a table.

    Args:
        folder: Folder of completion shards (.jsonl, .jsonl.gz, .jsonl.zst, .json, .parquet).
        manifest: Manifest whose `domains` are the target mix; without, the one that run.json holds.
        out: Folder for profile.json and profile.html; without, the folder itself, or here where it is read-only.
        labels: Labels made with `curate label`, a prior for the domains of their sources.
        workers: Processes that read shards; 0 takes one per core.
        near_threshold: Similarity of prompts from which they count as near duplicates.
    """
    from curation import profiles, report, table

    corpus = _open(folder, manifest=manifest, labels=labels, workers=workers)
    found = profiles.profile(corpus, _manifest(folder, manifest).get("domains", {}), near_threshold=near_threshold)
    print(table.profile_text(found))
    written = report.write(found, out or _writable(folder))
    print(f"\nwrote {written[0]} and {written[1]}")


@app.command
def inspect(
    folder: Folder = Path("completions_raw"),
    *,
    domain: str | None = None,
    source: str | None = None,
    language: str | None = None,
    finish_reason: str | None = None,
    flag: str | None = None,
    count: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 5,
    seed: int = 0,
    manifest: str | None = None,
    workers: int = 0,
) -> None:
    """Show rows: a sample of those that meet every condition given.

    Args:
        folder: Folder of completion shards.
        domain: Domain, as the profile names it.
        source: Source, as the profile names it.
        language: Language code, e.g. en or und.
        finish_reason: Finish reason, e.g. length.
        flag: Fault, e.g. loop, empty, refusal, mojibake.
        count: Rows to show.
        seed: Another seed shows other rows.
        manifest: Manifest that names the domains of sources.
        workers: Processes that read shards; 0 takes one per core.
    """
    from curation import inspection

    corpus = _open(folder, manifest=manifest, labels=None, workers=workers)
    wanted = {"domain": domain, "source": source, "language": language, "finish_reason": finish_reason}
    positions = inspection.select(corpus, count=count, flag=flag, seed=seed, **wanted)
    facts = corpus.facts[positions].iter_rows(named=True)
    print("\n\n".join(inspection.row_text(row, fact) for row, fact in zip(corpus.rows(positions), facts, strict=True)))


@app.command
def label(folder: Folder = Path("completions_raw"), *, sample: int = 20, workers: int = 0) -> None:
    """Give domains to a few rows of each source; profile and build use them from then on.

    Args:
        folder: Folder of completion shards; the labels are kept in it, as .labels.jsonl.
        sample: Rows of each source to label.
        workers: Processes that read shards; 0 takes one per core.
    """
    from curation import labelling
    from curation.corpus import LABELS_FILE

    corpus = _open(folder, manifest=None, labels=None, workers=workers)
    try:
        given = labelling.label(corpus, folder / LABELS_FILE, sample, input, lambda text: print(f"\n{text}\n"))
    except EOFError:
        raise ValueError(
            "labels come from a person at a terminal, and the input has ended; those given so far are kept"
        ) from None
    print(f"{given} labels added to {folder / LABELS_FILE}")


@app.command
def build(options: Annotated[BuildOptions, tyro.conf.arg(name="")]) -> None:
    """Build a set to train on: filter, deduplicate, decontaminate, tokenise, hold out, balance, write."""
    from curation import build_report
    from curation.build import build as build_set

    with build_report.StepProgress() as progress:
        built = build_set(options, progress)
    print(build_report.build_text(built))


@app.command
def export(options: Annotated[ExportOptions, tyro.conf.arg(name="")]) -> None:
    """Write a set in the shape that another trainer reads: SpecForge, OpenAI, ShareGPT."""
    from curation.export import export as export_set

    exported = export_set(options)
    for name, count in exported.rows.items():
        print(f"{exported.folder / name}.jsonl: {count:,} rows")


@app.command
def plan(options: Annotated[PlanOptions, tyro.conf.arg(name="")]) -> None:
    """What to generate next: which domains and sources, how much, at what cost, in which order."""
    from curation.planning import make_plan

    planned = make_plan(options)
    print(planned.text)
    print(f"\nwrote the plan to {planned.document}")
    if planned.manifest is not None:
        print(f"wrote {planned.manifest}; run it with: datagen run --manifest {planned.manifest}")


def _open(folder: Path, *, manifest: str | None, labels: Path | None, workers: int) -> Corpus:
    """Read a corpus with progress, domains of its sources taken from the manifest."""
    from curation.corpus import open_corpus
    from curation.facts import ReadingSettings

    sources = {source["name"]: source["domain"] for source in _manifest(folder, manifest).get("sources", ())}
    settings = ReadingSettings(labels=labels, source_domains=sources)
    with _progress() as progress:
        return open_corpus(folder, settings=settings, workers=workers or os.cpu_count() or 1, progress=progress)


def _manifest(folder: Path, manifest: str | None) -> dict[str, Any]:
    """Return the manifest that was named, else the one in the folder's run.json, else nothing."""
    if manifest is not None:
        from manifests import schema

        return schema.load(manifest)[0].model_dump(mode="json")
    from datagen import shards

    return (shards.read_card(folder) or {}).get("manifest") or {}


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show bytes read, rate and time left; without a terminal, a plain line now and then."""
    from tqdm import tqdm

    quiet = not sys.stderr.isatty()
    with tqdm(unit="B", unit_scale=True, desc="reading", mininterval=10 if quiet else 0.2, delay=2) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def _writable(folder: Path) -> Path:
    """Return the folder, or the working directory where it is read-only, and say so."""
    if os.access(folder, os.W_OK):
        return folder
    print(f"{folder} is read-only: writing here instead", file=sys.stderr)
    return Path.cwd()


def main() -> None:
    """Run `curate`."""
    try:
        app.cli(prog="curate", description=__doc__.split("\n")[0])
    except ValueError as error:
        print(f"curate: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of our output has enough, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a folder without permission
        print(f"curate: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("curate: interrupted; shards already read are kept", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
