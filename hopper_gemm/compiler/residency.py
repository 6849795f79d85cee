"""Driver queries about the current GPU: clusters that run at once, and the memory's copy rate.

A GPU's SMs lie in unequal groups (GPCs), and a cluster lies within one group.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.roofline import CLUSTER_SIZES, copied

_NOTHING = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry nothing() { ret; }
\0"""
"""An empty kernel for the occupancy query, in PTX. Its shared memory keeps a second CTA off its SM."""


def resident_clusters(size: int) -> int:
    """Clusters of ``size`` CTAs, of :data:`CLUSTER_SIZES`, that the current device runs at once, one CTA an SM. A
    persistent launch of more clusters would run the rest as a second wave, in twice the time."""
    import torch

    return _resident_clusters(torch.cuda.current_device())[size]


def memory_rate() -> float:
    """Bytes a second that a copy should move in the current device's memory; an H200's where the driver tells none."""
    import torch
    from cuda.bindings import driver

    torch.cuda.init()
    board = _checked(driver.cuDeviceGet(torch.cuda.current_device()))
    attributes = driver.CUdevice_attribute
    bits = int(_checked(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, board)))
    khz = int(_checked(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, board)))
    return copied(bits, khz * 1e3) or hopper.HBM_BYTES_PER_SECOND


@cache
def _resident_clusters(device: int) -> dict[int, int]:
    """Clusters that a device runs at once, by their CTAs. All sizes are asked about together: the driver compiles the
    kernel of the query once, and its handle dies with the context, which no one else may hold."""
    import torch
    from cuda.bindings import driver

    sms = int(torch.cuda.get_device_properties(device).multi_processor_count)
    torch.cuda.init()
    board = _checked(driver.cuDeviceGet(device))
    _checked(driver.cuCtxPushCurrent(_checked(driver.cuDevicePrimaryCtxRetain(board))))
    try:
        module = _checked(driver.cuModuleLoadData(_NOTHING))
        kernel = _checked(driver.cuModuleGetFunction(module, b"nothing"))
        shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(kernel, shared, hopper.SMEM_BYTES))
        dimension = driver.CUlaunchAttribute()
        dimension.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        launch = driver.CUlaunchConfig()
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = hopper.WARPGROUP_THREADS, 1, 1
        launch.sharedMemBytes = hopper.SMEM_BYTES
        clusters = {1: sms}
        for size in CLUSTER_SIZES[1:]:
            extent = dimension.value.clusterDim
            extent.x, extent.y, extent.z = size, 1, 1
            launch.gridDimX, launch.gridDimY, launch.gridDimZ = size, sms, 1
            launch.attrs, launch.numAttrs = [dimension], 1
            clusters[size] = int(_checked(driver.cuOccupancyMaxActiveClusters(kernel, launch)))
        _checked(driver.cuModuleUnload(module))
        return clusters
    finally:
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(board)


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call's result; raise its error."""
    error, *values = result
    if int(error):
        raise RuntimeError(f"the CUDA driver does not describe its GPU: {error.name}")
    return values[0] if values else None
