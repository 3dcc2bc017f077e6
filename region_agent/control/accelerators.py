"""The NVIDIA accelerators of this machine, as its driver reports them through NVML (`nvidia-ml-py`).

A GPU that is divided into MIG partitions is not offered, because nothing plans for partitions. A device that the driver
reported once stays in the list: if it does not answer later, its last values stand, with what is wrong and since when.
A machine without the driver's library has no accelerators.
"""

import logging
from dataclasses import replace
from typing import Any

import pynvml

from periplus.process import telemetry
from periplus.values.machine import Device, DeviceFamily

log = logging.getLogger(__name__)


class Accelerators:
    """Reads the accelerators again and again. `nvml` is the module `pynvml`, or what stands in for it."""

    def __init__(self, nvml: Any = pynvml) -> None:
        self._nvml = nvml
        self._seen: dict[int, tuple[Device, float]] = {}  # the last good value of each device, and when it was read

    def read(self, now_s: float) -> tuple[Device, ...]:
        """Return all accelerators in the driver's order. `now_s` is on a monotonic clock. It waits for the driver."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            # No such library is a machine without a GPU, which is no fault; any other error is one.
            if error.value != nvml.NVML_ERROR_LIBRARY_NOT_FOUND or self._seen:
                telemetry.event(log, logging.WARNING, "accelerators_unknown", why=error)
            return self._with_problem(str(error), now_s)
        try:
            driver = str(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                self._read_one(index, driver, now_s)
        except nvml.NVMLError as error:
            telemetry.event(log, logging.WARNING, "accelerators_unknown", why=error)
            return self._with_problem(str(error), now_s)
        finally:
            nvml.nvmlShutdown()
        return tuple(device if at_s == now_s else _failing(device, now_s - at_s) for device, at_s in self._sorted())

    def _read_one(self, index: int, driver: str, now_s: float) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if self._is_partitioned(handle):
                self._seen.pop(index, None)
                return
            device = Device(
                index=index,
                kind=DeviceFamily.CUDA,
                model=str(nvml.nvmlDeviceGetName(handle)),
                uuid=str(nvml.nvmlDeviceGetUUID(handle)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                driver=driver,
                has_nvlink=self._has_nvlink(handle),
                problem=self._damage(handle),
            )
            before = self._seen.get(index)
            if device.problem and before and before[0].problem == device.problem:
                return  # as it was: since when is what counts
            self._seen[index] = (device, now_s)
        except nvml.NVMLError as error:
            if index in self._seen:
                device, at_s = self._seen[index]
                self._seen[index] = (replace(device, problem=f"the driver says: {error}"), at_s)
            telemetry.event(log, logging.WARNING, "accelerator_does_not_answer", index=index, why=error)

    def _with_problem(self, why: str, now_s: float) -> tuple[Device, ...]:
        self._seen = {
            index: (replace(device, problem=device.problem or f"the driver says: {why}"), at_s)
            for index, (device, at_s) in self._seen.items()
        }
        return tuple(_failing(device, now_s - at_s) for device, at_s in self._sorted())

    def _sorted(self) -> list[tuple[Device, float]]:
        return [each for _, each in sorted(self._seen.items())]

    def _is_partitioned(self, handle: Any) -> bool:
        try:
            present, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:  # cards that cannot be divided do not know the question
            return False
        return bool(present == self._nvml.NVML_FEATURE_ENABLED)

    def _has_nvlink(self, handle: Any) -> bool:
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if self._nvml.nvmlDeviceGetNvLinkState(handle, link) == self._nvml.NVML_FEATURE_ENABLED:
                    return True
            except self._nvml.NVMLError:  # no such link
                return False
        return False

    def _damage(self, handle: Any) -> str:
        """Return why the driver's vendor says to replace the card, or an empty text."""
        try:
            _, _, _, has_failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
        except self._nvml.NVMLError:  # cards before Ampere remap no rows
            return ""
        return "rows of its memory are damaged and could not be remapped" if has_failed else ""


def _failing(device: Device, seconds: float) -> Device:
    return replace(device, problem_s=seconds)
