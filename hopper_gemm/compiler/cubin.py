"""Resources of a compiled kernel, read from the cubin: registers, spills, counts of key instructions.

A cubin is an ELF file. Registers and stack stand in its ``.nv.info`` section, the machine code in ``.text.*``, sixteen
bytes an instruction with the operation in the lowest twelve bits. Reading them takes a millisecond; disassembling the
same file takes half a second, too long for a sweep of thousands of kernels. The codes below were read off
``nvdisasm``'s listing, and a test compares both ways of counting.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

OPCODES = {
    "wgmma": (0x9F0, 0x9F3),  # HGMMA, QGMMA
    "tma_loads": (0x5B4, 0x3B4),  # UTMALDG, UTMALDG.MULTICAST
    "tma_stores": (0x3B5,),  # UTMASTG
    "local_loads": (0x983,),  # LDL
    "local_stores": (0x387,),  # STL
    "wgmma_waits": (0x9C5,),  # WARPGROUP.ARRIVE, WARPGROUP.DEPBAR
}
NOP = 0x918

_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_FORMAT_SVAL = 0x04


@dataclass(frozen=True)
class CubinReport:
    """One kernel's resources: registers and bytes of stack of a thread at launch, and counts of instructions."""

    registers: int
    stack_bytes: int  # with a stack the kernel spills or indexes registers
    local_loads: int  # and stores: they reach local memory, so they are spills
    local_stores: int
    wgmma: int  # one consumer runs all of them for each stage
    wgmma_waits: int  # for wgmma groups; more than the kernel asked for means the compiler serialised them
    tma_loads: int
    tma_stores: int
    instructions: int  # all, padding left out
    code: str  # digest of the machine code; it identifies the binary that was measured

    @property
    def spills(self) -> bool:
        """True if registers spill to local memory."""
        return bool(self.stack_bytes or self.local_loads or self.local_stores)


def read_cubin(cubin: bytes) -> CubinReport:
    """Read the only kernel of a cubin; refuse what is no 64-bit ELF file with exactly one."""
    sections = dict(_sections(cubin))
    code = [body for name, body in sections.items() if name.startswith(".text.")]
    if len(code) != 1 or ".nv.info" not in sections:
        raise ValueError(f"cubin must hold exactly one kernel but holds {len(code)}")
    words = [word for (word,) in struct.iter_unpack("<Q8x", code[0])]
    operations = Counter(word & 0xFFF for word in words)
    attributes = dict(_attributes(sections[".nv.info"]))
    return CubinReport(
        registers=attributes.get(_REGCOUNT, 0),
        stack_bytes=attributes.get(_FRAME_SIZE, 0),
        instructions=len(words) - operations[NOP],
        code=hashlib.sha256(code[0]).hexdigest()[:16],
        **{name: sum(operations[code] for code in codes) for name, codes in OPCODES.items()},
    )


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of every section."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("cubin must be a 64-bit ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]
    table = headers[names][4]
    for name, kind, _, _, start, length, *_ in headers:
        end = elf.index(b"\0", table + name)
        no_bits = kind == 8  # SHT_NOBITS
        yield elf[table + name : end].decode(), b"" if no_bits else elf[start : start + length]


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """The per-kernel values of an ``.nv.info`` section: attribute code and value."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _FORMAT_SVAL:
            if length == 8:
                yield attribute, struct.unpack_from("<I", info, at + 4)[0]
            at += length
