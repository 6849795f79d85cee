"""The chip's numbers: what a Hopper SM (sm_90a) has, each with its source.

Units stand in the names. Sources, named once and referred to below:

* PTX: "Parallel Thread Execution ISA", https://docs.nvidia.com/cuda/parallel-thread-execution
* GUIDE: "CUDA Programming Guide", technical specifications per compute capability,
  https://docs.nvidia.com/cuda/cuda-c-programming-guide
* HOPPER: "NVIDIA H100 Tensor Core GPU Architecture" white paper
"""

from __future__ import annotations

ARCH = "sm_90a"  # target of every compilation: wgmma, TMA multicast and setmaxnreg need the "a" (PTX)
COMPUTE_CAPABILITY = (9, 0)

SM_COUNT = 132  # SMs of an H100 SXM and of an H200 (HOPPER); an H100 PCIe has 114, an H20 78, the whole die 144
STRANDED_SMS = 12
"""SMs that clusters of four or more leave idle: a cluster lies within one group of SMs (GPC), and the groups are not of
one size. Seen on an NVIDIA H200, where 30 clusters of four run at once; other GPUs strand other numbers, taken as the
same share of their SMs where no driver can be asked."""

SMEM_BYTES = 232_448  # shared memory one CTA may use: 227 KiB of the SM's 228 (GUIDE)
SMEM_BYTES_PER_SM = 233_472  # shared memory of an SM, 228 KiB (GUIDE)
SMEM_SYSTEM_BYTES = 1024  # the part of it that the system reserves for each CTA (GUIDE)

REGISTERS_PER_SM = 65_536  # 32-bit registers of one SM (GUIDE)
REGISTERS_PER_THREAD = 255  # most registers of one thread (GUIDE)
REGISTER_STEP = 8  # registers per thread are allocated, and setmaxnreg counts, in eights (PTX, setmaxnreg)

WARP_THREADS = 32
WARPGROUP_WARPS = 4  # wgmma is issued by four warps together (PTX, wgmma.mma_async)
WARPGROUP_THREADS = WARP_THREADS * WARPGROUP_WARPS

# rows, 16-bit elements along k, and columns of one wgmma instruction (PTX, wgmma.mma_async shapes)
WGMMA_M = 64
WGMMA_K = 16
WGMMA_N_STEP = 8
WGMMA_N_MAX = 256
FLOP_PER_CLOCK_PER_SM = 4096  # dense 16-bit rate: four tensor cores of 512 fused multiply-adds a clock each (HOPPER)

TMA_BOX_MAX = 256  # the longest side of a box that one TMA instruction moves, in elements (PTX, tensor box)
# global addresses and row pitches that TMA accepts are multiples of this (CUDA driver API, cuTensorMapEncodeTiled)
TMA_ALIGN_BYTES = 16
SWIZZLE_BYTES = (128, 64, 32, 16)  # row spans of swizzles in shared memory; 16 is none (PTX, tensor swizzling modes)
MBARRIER_BYTES = 8

L2_LINE_BYTES = 128  # a line of the L2, of four sectors (CUDA programming guide, device memory accesses)
L2_BYTES = 60 * 2**20  # of an H200 as the driver reports it (50 MiB on an H100 SXM); rotating buffers must exceed it
HBM_BYTES_PER_SECOND = 4.3e12  # measured on an NVIDIA H200: a device-to-device copy, bytes read plus bytes written
SM_HZ_MAX = 1.98e9  # the highest SM clock of an H100 SXM and of an H200, as their driver reports it
