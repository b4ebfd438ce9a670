"""The Hugging Face hub as a source of rows: asked about first (access, licence, commit), streamed after.

Rows come through `datasets` in streaming mode, or, where its casts fail on a repository's files, straight from the parquet
and JSONL files through the hub's file system (`hub.data_files`). Both read one commit, which the plan records, so a branch
that moves while a plan is made or grown does not mix two versions. Nothing is downloaded ahead of being read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Protocol

from datagen.rows import Located, Problems, read_rows
from manifests.schema import HubLocation, Source


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of a data set at one commit."""

    commit: str
    license: str | None
    """From its card; None where that names none."""
    files: tuple[str, ...]
    """Paths inside the repository."""


class Hub(Protocol):
    """What is asked of a hub."""

    def describe(self, repo: str, revision: str | None) -> Repository:
        """Return a data set's state, having made sure that this account may read it.

        Raises:
            ValueError: it does not exist, is gated, or cannot be reached; says what to do.
        """

    def stream(self, repo: str, config: str | None, split: str, commit: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a split.

        Raises:
            ValueError: no such split, or its files cannot be cast to one schema; says what to do.
        """

    def open(self, repo: str, commit: str, path: str) -> io.BufferedIOBase:
        """Open a file for reading at any position."""


def hub_rows(hub: Hub, source: Source, repository: Repository, problems: Problems) -> Iterator[Located]:
    """Yield the rows of a hub source, split after split or file after file.

    Raises:
        ValueError: as `Hub.stream`, or a glob of `data_files` that matches nothing.
    """
    location = source.hub
    assert location is not None
    if location.data_files:
        for path in _data_files(source.name, location, repository):
            with hub.open(location.repo, repository.commit, path) as file:
                yield from read_rows(file, path, problems, has_header=not (source.column or "").isdecimal())
        return
    for split in (location.split,) if isinstance(location.split, str) else location.split:
        for number, row in enumerate(hub.stream(location.repo, location.config, split, repository.commit), 1):
            yield f"{location.repo} {split}, row {number}", row


def _data_files(name: str, location: HubLocation, repository: Repository) -> list[str]:
    found: set[str] = set()
    for pattern in location.data_files:
        matches = [path for path in repository.files if fnmatch(path, pattern)]
        if not matches:
            some = ", ".join(path for path in repository.files[:5])
            raise ValueError(f"source {name!r}: no file of {location.repo} matches {pattern!r}; it has {some}, ...")
        found.update(matches)
    return sorted(found)


class HuggingFaceHub:
    """The real hub. The access token comes from the environment or the login of `hf auth login`, as its library does it."""

    def describe(self, repo: str, revision: str | None) -> Repository:
        from huggingface_hub import HfApi

        with _said_clearly(repo, revision):
            api = HfApi()
            api.auth_check(repo, repo_type="dataset")
            info = api.dataset_info(repo, revision=revision)
        license_name = info.card_data.get("license") if info.card_data else None
        files = tuple(sibling.rfilename for sibling in info.siblings or ())
        return Repository(info.sha or "", license_name if isinstance(license_name, str) else None, files)

    def stream(self, repo: str, config: str | None, split: str, commit: str) -> Iterator[dict[str, Any]]:
        import datasets
        from datasets.exceptions import DatasetsError

        datasets.disable_progress_bars()
        with _said_clearly(repo, commit):
            try:
                yield from datasets.load_dataset(repo, config, split=split, revision=commit, streaming=True)
            except (DatasetsError, ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"`datasets` cannot read split {split!r} of {repo}: {_one_line(error)}; check `hub.config` and `hub.split`, "
                    "or name files in `hub.data_files`: those are read without a common schema"
                ) from error

    def open(self, repo: str, commit: str, path: str) -> io.BufferedIOBase:
        from huggingface_hub import HfFileSystem

        with _said_clearly(repo, commit):
            return HfFileSystem().open(f"datasets/{repo}@{commit}/{path}", "rb")


@contextmanager
def _said_clearly(repo: str, revision: str | None) -> Iterator[None]:
    """Turn what the hub's libraries raise into one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ValueError(
            f"data set {repo} is gated: accept its terms on its page while logged in, then put a token into HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"data set {repo} has no revision {revision!r}; pin a commit from its history") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"no data set {repo} on the hub, or a private one; check the name, or put a token into HF_TOKEN"
        ) from error
    except (errors.HTTPError, OSError) as error:
        raise ValueError(
            f"the hub cannot be reached for data set {repo}: {_one_line(error)}; "
            "download it where there is a network and name the copies in `files`"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
