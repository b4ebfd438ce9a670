"""Reading shards on a cluster: each shard's facts go to the cache, where `open_corpus` finds them."""

from __future__ import annotations

from pathlib import Path

from curation import pools
from curation.corpus import Reading, default_cache, read_one
from curation.facts import ReadingSettings
from curation.files import list_files


def read_over_ray(folder: Path, cache: Path | None, settings: ReadingSettings, workers: int) -> None:
    """Read the shards of `folder` that are new into the cache, over Ray Data.

    Raises:
        ValueError: the folder is missing or holds no shard, or Ray is not installed.
    """
    place = (cache or default_cache(folder)).resolve()
    place.mkdir(parents=True, exist_ok=True)
    paths = [path.absolute() for path in list_files(folder)]
    for _ in pools.run(read_one, paths, start=Reading, start_args=(place, settings), workers=workers, pool="ray"):
        pass
