"""Hub sources are checked before anything is read, then read at one commit, file by file or through `datasets`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile

from datagen.expansion import expand
from datagen.hub import HuggingFaceHub, Repository
from manifests.schema import Manifest


class RangedFile(AbstractBufferedFile):
    """A file that is fetched by ranges, as the hub's file system gives it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        super().__init__(None, "file", size=len(content), block_size=100)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.content[start:end]


class FakeHub:
    """A hub in memory: repositories with files and splits, by name."""

    def __init__(self, **repositories: Any) -> None:
        self.repositories = repositories
        self.described: list[tuple[str, str | None]] = []

    def describe(self, repo: str, revision: str | None) -> Repository:
        self.described.append((repo, revision))
        entry = self.repositories[repo.split("/")[1]]
        if entry.get("gated"):
            raise ValueError(f"data set {repo} is gated")
        return Repository(revision or "head", entry.get("license"), tuple(entry.get("files", {})))

    def stream(self, repo: str, config: str | None, split: str, commit: str) -> Iterator[dict[str, Any]]:
        yield from self.repositories[repo.split("/")[1]]["splits"][config, split, commit]

    def open(self, repo: str, commit: str, path: str) -> Any:
        return RangedFile(self.repositories[repo.split("/")[1]]["files"][path])


def _manifest(hub: dict[str, Any], **changes: Any) -> Manifest:
    source = {"name": "a", "hub": {"repo": "o/a", **hub}, "domain": "chat", "license": "cc-by-4.0", "count": 9}
    return Manifest.model_validate({"name": "mix", "target": {"model": "m"}, "sources": [source], **changes})


def _asked(manifest: Manifest, hub: FakeHub, **options: Any) -> list[str]:
    return sorted(
        prompt.messages[-1]["content"] for prompt in expand(manifest, Path("mix.yaml"), hub=hub, **options).prompts
    )


def test_splits_are_read_at_the_pinned_commit_as_one_source() -> None:
    splits = {("c", "x", "abc"): [{"prompt": "one"}], ("c", "y", "abc"): [{"prompt": "two"}]}
    hub = FakeHub(a={"splits": splits})
    manifest = _manifest({"config": "c", "split": ["x", "y"], "revision": "abc"})
    expansion = expand(manifest, Path("mix.yaml"), hub=hub)
    assert _asked(manifest, hub) == ["one", "two"]
    assert expansion.report.sources[0].commit == "abc"
    assert not [warning for warning in expansion.report.warnings if "revision" in warning]


def test_an_unpinned_source_is_read_at_the_commit_an_earlier_plan_read_and_is_warned_about() -> None:
    hub = FakeHub(
        a={"splits": {(None, "train", "head"): [{"prompt": "new"}], (None, "train", "old"): [{"prompt": "old"}]}}
    )
    assert _asked(_manifest({}), hub) == ["new"]
    assert _asked(_manifest({}), hub, commits={"a": "old"}) == ["old"]
    report = expand(_manifest({}), Path("mix.yaml"), hub=hub).report
    assert (report.sources[0].commit, report.warnings[-1]) == (
        "head",
        "source a: no `revision`; pin it, or the plan cannot be made again",
    )


def test_data_files_are_read_straight_whatever_their_form() -> None:
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"prompt": "three", "other": [1]}]), table)
    files = {
        "data/x-1.jsonl": b'{"prompt": "one", "other": {"a": 1}}\n',
        "data/x-0.jsonl": b'{"prompt": "two", "other": "not the same type"}\nbroken\n',
        "data/x.parquet": table.getvalue(),
        "README.md": b"...",
    }
    hub = FakeHub(a={"files": files})
    manifest = _manifest({"data_files": ["data/*"], "revision": "abc"})
    assert _asked(manifest, hub) == ["one", "three", "two"]
    report = expand(manifest, Path("mix.yaml"), hub=hub).report.sources[0]
    assert report.first_dropped == {"not_json": "data/x-0.jsonl:2"}
    with pytest.raises(ValueError, match=r"no file of o/a matches 'none\*'; it has data/x-1.jsonl"):
        _asked(_manifest({"data_files": ["none*"]}), hub)


def test_every_source_is_checked_before_the_first_is_read(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"prompt": "one"}\n')
    sources = [
        {"name": "b", "files": "b.jsonl", "domain": "chat", "license": "MIT", "count": 1},
        {"name": "a", "hub": {"repo": "o/a"}, "domain": "chat", "license": "MIT", "count": 1},
    ]
    manifest = Manifest.model_validate({"name": "mix", "target": {"model": "m"}, "sources": sources})
    read: list[str] = []
    with pytest.raises(ValueError, match="data set o/a is gated"):
        expand(manifest, tmp_path / "mix.yaml", lambda name, rows: read.append(name), hub=FakeHub(a={"gated": True}))
    assert read == []


def test_a_card_with_another_licence_is_an_error_outside_the_allowed_and_a_warning_otherwise() -> None:
    splits = {(None, "train", "head"): [{"prompt": "one"}]}
    hub = FakeHub(a={"splits": splits, "license": "cc-by-nc-4.0"})
    with pytest.raises(ValueError, match="source 'a': its card says licence cc-by-nc-4.0, which is outside `licenses`"):
        expand(_manifest({}, licenses=["cc-by-4.0"]), Path("mix.yaml"), hub=hub)
    warnings = expand(_manifest({}), Path("mix.yaml"), hub=hub).report.warnings
    assert warnings[0] == "source a: its card says licence cc-by-nc-4.0, the manifest says cc-by-4.0"
    agreeing = FakeHub(a={"splits": splits, "license": "CC BY 4.0"})
    assert len(expand(_manifest({}, licenses=["cc-by-4.0"]), Path("mix.yaml"), hub=agreeing).report.warnings) == 2


def test_a_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match="the hub cannot be reached for data set o/a: .*; download it .* in `files`"
    ) as caught:
        HuggingFaceHub().describe("o/a", None)
    assert "\n" not in str(caught.value)


def test_the_real_library_streams_a_split_and_its_failures_name_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "train-0.jsonl").write_text("".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(3)))
    assert list(HuggingFaceHub().stream(str(tmp_path), None, "train", "abc")) == [
        {"prompt": "0"},
        {"prompt": "1"},
        {"prompt": "2"},
    ]
    with pytest.raises(
        ValueError, match=r"cannot read split 'tra' .*: Bad split: tra. Available splits: \['train'\]; check"
    ):
        list(HuggingFaceHub().stream(str(tmp_path), None, "tra", "abc"))
    (tmp_path / "train-1.jsonl").write_text('{"prompt": "one", "more": 1}\n')
    with pytest.raises(
        ValueError, match="`datasets` cannot read split 'train' .*: Couldn't cast .*name files in `hub.data_files`"
    ):
        list(HuggingFaceHub().stream(str(tmp_path), None, "train", "abc"))
