"""A whole runtime on a real small file system: it waits while that is full, and says what else is wrong with it."""

import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.demo import (
    DEADLINE_S,
    TINY,
    TWO_REGIONS,
    assert_all_gone,
    audit,
    read_until,
    resume_demo,
    start_demo,
)
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.processes, pytest.mark.faults]

STEP_KIB = 200
AMPLE_KIB = 64 << 10


def start_on(disk: SmallDisk, home: Path, *, steps: int, checkpoint_every: int) -> "subprocess.Popen[str]":
    """Start an asynchronous demo whose runs lie on the disk, and all else in `home`."""
    lengths = ("--staleness", "2", "--steps", str(steps))
    small = (TWO_REGIONS, *TINY, f"checkpoint.every_steps={checkpoint_every}")
    return start_demo(home, *lengths, *small, f"output.dir={disk.root}")


@contextmanager
def watched(demo: "subprocess.Popen[str]") -> Iterator[list[str]]:
    """Collect the lines that the demo says, while the test does something else."""
    said: list[str] = []
    assert demo.stderr is not None
    reading = threading.Thread(target=said.extend, args=(demo.stderr,))
    reading.start()
    try:
        yield said
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(DEADLINE_S)
        reading.join()
        demo.stderr.close()


def only_run(folder: Path) -> Path:
    (run,) = (path for path in folder.iterdir() if (path / "config.yaml").exists())
    return run


def test_a_run_in_4_mb_waits_for_each_checkpoint_and_succeeds_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=4096) as disk:
        demo = start_on(disk, tmp_path, steps=15, checkpoint_every=5)
        assert "waiting for disk: " in read_until(demo, "waiting for disk")
        num_kib, until_s = 4096, time.monotonic() + DEADLINE_S
        with watched(demo) as said:
            while demo.poll() is None:
                assert time.monotonic() < until_s, said
                num_kib += STEP_KIB
                disk.resize(num_kib)
                time.sleep(0.5)
        assert demo.returncode == 0, said
        run = only_run(disk.root)
        assert audit(run)["findings"] == []
        warnings = [line for line in (run / "logs" / "trainer.log").read_text().splitlines() if "disk_full" in line]
        assert warnings
        assert all(" WARNING " in line and "bytes are needed" in line and "are free" in line for line in warnings)
    assert_all_gone(tmp_path)


def test_a_disk_that_holds_everything_and_fills_up_again_and_again_costs_nothing_but_time(tmp_path: Path) -> None:
    """The disk holds journal, trajectories, checkpoints, spools and weight copies of two gateways, and every log."""
    with small_disk(tmp_path / "small", num_kib=AMPLE_KIB) as disk:
        arguments = ("--staleness", "2", "--steps", "40", TWO_REGIONS, *TINY, "checkpoint.every_steps=3")
        demo = start_demo(disk.root, *arguments, home=tmp_path)
        read_until(demo, "phase training")
        with watched(demo) as said:
            for leaving_bytes in (0, 50_000, 400_000, 2_000_000):
                filler = disk.fill(leaving_bytes=leaving_bytes)
                time.sleep(2)
                filler.unlink()
                time.sleep(0.5)
                assert demo.poll() is None or demo.returncode == 0, said
            demo.wait(DEADLINE_S)
        assert demo.returncode == 0, said
        run = only_run(disk.root / "runs")
        assert "disk_full" in (run / "logs" / "trainer.log").read_text(), "the disk was never full at a write"
        assert audit(run)["findings"] == []
    assert_all_gone(tmp_path)


def test_a_run_that_is_cancelled_while_it_waits_stops_at_once_and_resumes_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=4096) as disk:
        demo = start_on(disk, tmp_path, steps=12, checkpoint_every=4)
        read_until(demo, "waiting for disk")
        disk.fill(leaving_bytes=0)
        asked_s = time.monotonic()
        demo.send_signal(signal.SIGINT)
        with watched(demo) as said:
            demo.wait(DEADLINE_S)
        assert demo.returncode == 130, said
        assert time.monotonic() - asked_s < 25, "it was killed after the grace and did not stop by itself"
        assert any("Resume with: periplus demo --resume" in line for line in said), said
        run = only_run(disk.root)
        assert audit(run)["findings"] == []
        disk.resize(AMPLE_KIB)
        assert resume_demo(tmp_path, run)["steps"] == 12
        assert audit(run)["findings"] == []


def test_what_waiting_does_not_mend_ends_the_job_with_one_sentence_that_names_the_path(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=AMPLE_KIB) as disk:
        demo = start_on(disk, tmp_path, steps=4000, checkpoint_every=2)
        read_until(demo, "step ")
        run = only_run(disk.root)
        shutil.rmtree(run, ignore_errors=True)  # its writers may add to it meanwhile
        with watched(demo) as lines:
            demo.wait(DEADLINE_S)
        assert demo.returncode not in (0, None)
        sentence = next(line for line in lines if line.startswith("error: "))
        assert str(run) in sentence
        assert re.search("does not exist|was removed", sentence)
    assert_all_gone(tmp_path)


def test_a_read_only_output_directory_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", num_kib=1024) as disk:
        disk.make_read_only()
        demo = start_demo(tmp_path, "--steps", "2", TWO_REGIONS, *TINY, f"output.dir={disk.root}")
        with watched(demo) as said:
            demo.wait(DEADLINE_S)
        assert demo.returncode not in (0, None)
        assert any(line.startswith("error: ") and str(disk.root) in line for line in said), said
