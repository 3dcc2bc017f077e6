"""The accelerators that an agent finds on its host. A script stands in for the driver's program `nvidia-smi`."""

from pathlib import Path

import pytest

from region_agent.control.inventory import accelerators


def program(folder: Path, printed: str, ends_with: int = 0) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}END\nexit {ends_with}\n")
    path.chmod(0o755)
    return str(path)


def test_equal_cards_are_counted_and_partitioned_ones_are_left_out(tmp_path: Path) -> None:
    found = accelerators(
        program(
            tmp_path,
            "NVIDIA L4, 23034, [N/A]\nNVIDIA H100 80GB HBM3, 81559, Disabled\n"
            "NVIDIA H100 80GB HBM3, 81559, Enabled\nNVIDIA L4, 23034, [N/A]\n",
        )
    )
    assert [(each.name, each.memory_bytes >> 20, each.num) for each in found] == [
        ("NVIDIA H100 80GB HBM3", 81559, 1),
        ("NVIDIA L4", 23034, 2),
    ]


def test_a_host_without_the_program_has_none(tmp_path: Path) -> None:
    assert accelerators(str(tmp_path / "nowhere")) == ()


@pytest.mark.parametrize(
    ("printed", "ends_with", "why"),
    [
        ("No devices were found\n", 6, "it exited with status 6: No devices were found"),
        ("NVIDIA L4, plenty, Disabled\n", 0, "is not a name, a memory size in MiB and a MIG mode"),
        ("NVIDIA L4\n", 0, "is not a name, a memory size in MiB and a MIG mode"),
    ],
)
def test_a_program_that_fails_or_says_nothing_readable_is_a_warning(
    printed: str, ends_with: int, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert accelerators(program(tmp_path, printed, ends_with)) == ()
    (record,) = caplog.records
    assert record.message == "accelerators_unknown"
    assert why in str(record.fields["why"])  # type: ignore[attr-defined]
