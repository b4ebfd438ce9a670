"""Disks that are full, low or read-only: a run stops cleanly, and goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from datagen import ledger
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.verify import VerifyCommand, verify
from tests.datagen.small_plans import QUICK, make_plan, published, run_plan

pytestmark = pytest.mark.faults


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mount.returncode:
        pytest.skip(f"this user may not mount a small file system: {mount.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_run_and_room_lets_it_complete(small_disk: Path, tmp_path: Path) -> None:
    calm = make_plan(tmp_path / "calm", 200)
    run_plan(calm)
    plan = make_plan(small_disk / "run", 200)
    outcome = run_plan(plan)
    assert outcome.end == "disk low"
    assert outcome.num_failed == 0 and 0 < outcome.num_pending < 200
    found = verify(VerifyCommand(folder=plan.folder))
    assert (found.num_done, found.num_pending) == (outcome.num_done, outcome.num_pending), (
        "no answer that landed is lost"
    )

    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert run_plan(plan).end == "complete"
    assert published(plan.folder) == published(calm.folder)


def test_a_disk_below_its_reserve_stops_the_run_before_it_is_full(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 20)
    options = QUICK.model_copy(update={"disk_reserve_mib": 2.0**40})
    outcome = run_plan(plan, EchoEngine(EchoOptions(delay_s=0.05)), options)
    assert (outcome.end, outcome.num_failed) == ("disk low", 0)
    assert "MiB needed" in outcome.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder_is_said_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        ledger.hidden(tmp_path)


def test_a_read_only_disk_is_said_at_once(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        ledger.hidden(small_disk / "run")
