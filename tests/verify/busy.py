"""Taking SMs away from a launch: a kernel that holds some of them, and contexts that have only some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

import torch

from hopper_gemm.model import hopper

HOLD = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry hold(.param .u64 flags, .param .u64 nanoseconds)
{
    .reg .pred over, more;
    .reg .b32 cta, stop;
    .reg .b64 flag, mine, most, begun, now;
    ld.param.u64 flag, [flags];
    ld.param.u64 most, [nanoseconds];
    mov.u32 cta, %ctaid.x;
    mul.wide.u32 mine, cta, 4;
    add.u64 mine, mine, flag;
    st.volatile.global.u32 [mine+4], 1;
    mov.u64 begun, %globaltimer;
wait:
    nanosleep.u32 500;
    ld.volatile.global.u32 stop, [flag];
    setp.ne.u32 over, stop, 0;
    @over bra done;
    mov.u64 now, %globaltimer;
    sub.u64 now, now, begun;
    setp.lt.u64 more, now, most;
    @more bra wait;
done:
    ret;
}
\0"""
"""PTX. CTA i writes flags[1 + i], then waits until flags[0] is set, or for so many nanoseconds."""

MOST_SECONDS = 5.0
"""After so long a holder ends by itself."""


class UnsupportedError(RuntimeError):
    """This torch, driver or GPU cannot do what was asked for; the message says which."""


@contextmanager
def held(sms: int) -> Iterator[None]:
    """Hold some SMs of the current device: no CTA that wants shared memory finds room on them.

    The holders poll a flag in device memory. Polling pinned host memory slows every other kernel: on an NVIDIA H200
    with 16 SMs held, torch.mm at 8192x8192x8192 took 8.7 ms, and 1.9 ms with the flag in device memory; the kernel with
    the dynamic scheduler 6.1 and 1.6 ms (results/measurements/busy-sms.csv). The host reads and writes the flags by
    copies on a stream of its own: a copy needs no SM, and waits for no launch of the caller's.

    Args:
        sms: how many; 0 holds none.

    Raises:
        TimeoutError: they were not free.
    """
    if not sms:
        yield
        return
    from cuda.bindings import driver

    flags = torch.zeros(1 + sms, dtype=torch.int32, device="cuda")
    seen, over = torch.zeros(1 + sms, dtype=torch.int32).pin_memory(), torch.ones(1, dtype=torch.int32).pin_memory()
    holders, copies = islice((one for one in iter(torch.cuda.Stream, None) if one != torch.cuda.current_stream()), 2)
    values = [torch.tensor([value], dtype=torch.int64) for value in (flags.data_ptr(), int(MOST_SECONDS * 1e9))]
    parameters = torch.tensor([value.data_ptr() for value in values], dtype=torch.int64)
    grid, block = (sms, 1, 1), (hopper.WARP_THREADS, 1, 1)
    stream, beside = driver.CUstream(holders.cuda_stream), driver.CUstream(copies.cuda_stream)
    torch.cuda.synchronize()
    _checked(driver.cuLaunchKernel(_hold(), *grid, *block, hopper.SMEM_BYTES, stream, parameters.data_ptr(), 0))
    deadline = time.monotonic() + MOST_SECONDS / 2
    try:
        while True:
            _checked(driver.cuMemcpyDtoHAsync(seen.data_ptr(), flags.data_ptr(), flags.nbytes, beside))
            copies.synchronize()
            if (found := int(seen[1:].sum())) == sms:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{found} of {sms} SMs could be held")
        yield
    finally:
        _checked(driver.cuMemcpyHtoDAsync(flags.data_ptr(), over.data_ptr(), over.nbytes, beside))
        copies.synchronize()
        holders.synchronize()


@cache
def _hold() -> Any:
    from cuda.bindings import driver

    torch.cuda.init()
    kernel = _checked(driver.cuModuleGetFunction(_checked(driver.cuModuleLoadData(HOLD)), b"hold"))
    shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(kernel, shared, hopper.SMEM_BYTES))
    return kernel


def _checked(answer: tuple[Any, ...]) -> Any:
    error, *values = answer
    if int(error):
        raise RuntimeError(f"the CUDA driver cannot hold SMs: {error.name}")
    return values[0] if values else None


@contextmanager
def green(sms: int) -> Iterator[None]:
    """Launch within a green context, which has only some of the SMs.

    Args:
        sms: how many; the driver rounds up to whole groups.

    Raises:
        UnsupportedError: torch or the driver has no green contexts.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        context: Any = GreenContext.create(num_sms=sms, device_id=torch.cuda.current_device())
    except (ImportError, RuntimeError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"no green contexts here: {str(error).splitlines()[0]}") from None
    torch.cuda.synchronize()
    context.set_context()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        context.pop_context()
