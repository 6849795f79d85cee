"""Recorded binaries: the machine code behind recorded figures, kept beside results to be timed beside today's kernel.

A folder holds object files, each named after its SHA-256, and a JSON file for each problem with config, SHA-256 of the
object and the compiler's report.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.abi import ARGUMENTS
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import LoadedKernel, compile_into, launcher_of
from hopper_gemm.compiler.store import DSL, KernelId, KernelStore, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.sealed import sealed, unsealed

FOLDER = "recorded"
"""Folder of recorded binaries in a GPU's results folder."""

NAMES = tuple(argument.name for argument in ARGUMENTS)
EARLIER_ARGUMENTS = ("a", "b", "c", "clusters", "along_m", "swizzle", "serpentine", "sums", "words", "readings")
"""Arguments of a launcher whose record does not name them."""


class RecordedBinaryError(ValueError):
    """A recorded binary is damaged, or cannot be launched; the message names the file and the fix."""


@dataclass(frozen=True)
class RecordedBinary:
    """A binary with its problem and config."""

    problem: GemmProblem  # on which it ran
    config: Kernel  # resolved config, launch-time fields included
    report: CubinReport  # the compiler's report
    object_file: Path  # file of its launcher and device code
    digest: str  # SHA-256 of that file
    arguments: tuple[str, ...] = NAMES  # names of its launcher's arguments, of ARGUMENTS

    @property
    def description(self) -> Path:
        """Path of the JSON file that describes the binary."""
        name = f"{self.problem}-{self.problem.dtype}-{self.problem.layouts}-{self.digest[:16]}.json"
        return self.object_file.parent / name

    def load(self) -> LoadedKernel:
        """Load the kernel for the current device.

        Raises:
            RecordedBinaryError: the file differs from the recorded digest, or the installed DSL cannot load it.
        """
        if not self.object_file.is_file() or hashlib.sha256(self.object_file.read_bytes()).hexdigest() != self.digest:
            raise RecordedBinaryError(f"{self.object_file} is not the binary that was recorded; restore it from git")
        try:
            launcher = with_arguments(launcher_of(self.object_file), self.arguments)
            return LoadedKernel.of(self.config, self.report, launcher)
        except Exception as error:  # whatever the DSL raises
            raise RecordedBinaryError(
                f"{self.object_file} cannot be loaded with {DSL} {version(DSL)} ({type(error).__name__}); install the "
                "version that it was recorded with, or record it again"
            ) from error


def with_arguments(launcher: Any, names: Sequence[str]) -> Any:
    """Adapt a launcher that takes only some of today's arguments."""
    places = [NAMES.index(name) for name in names]
    return launcher if tuple(names) == NAMES else lambda *arguments: launcher(*(arguments[at] for at in places))


def record_binary(folder: Path, config: GemmConfig, problem: GemmProblem, store: Path | None = None) -> RecordedBinary:
    """Record today's binary of a config on a problem, on which it is legal and whose operands need no copy for TMA, in
    a folder, which is made if it is missing."""
    kernels, kernel = KernelStore(store or default_store()), KernelId.of(config, problem)
    report = compile_into(kernels, kernel)
    content = kernels.object_file(kernel).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    binary = RecordedBinary(problem, resolve(config), report, folder / f"{digest[:16]}.o", digest)
    binary.object_file.write_bytes(content)
    description = {
        "problem": asdict(problem),
        "config": binary.config.as_dict(),
        "report": asdict(report),
        "object": digest,
        "arguments": list(binary.arguments),
    }
    binary.description.write_text(sealed(description))
    return binary


def recorded_binaries(folder: Path) -> list[RecordedBinary]:
    """Return the binaries of a folder, sorted by name; none if the folder is missing."""
    return [read_binary(path) for path in sorted(folder.glob("*.json"))]


def read_binary(path: Path) -> RecordedBinary:
    """Return the binary that a file describes.

    Raises:
        RecordedBinaryError: the file is not of this form.
    """
    try:
        raw = unsealed(path.read_text(), path.name)
        problem, config = GemmProblem(**raw["problem"]), resolve(GemmConfig.of(raw["config"]))
        digest = raw["object"]
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("object must be a SHA-256")
        report, arguments = CubinReport(**raw["report"]), tuple(raw.get("arguments", EARLIER_ARGUMENTS))
        if not arguments or set(arguments) - set(NAMES):
            raise ValueError("arguments must be names of a launcher's arguments")
        binary = RecordedBinary(problem, config, report, path.with_name(f"{digest[:16]}.o"), digest, arguments)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordedBinaryError(f"{path} is no recorded binary ({error}); restore it from git") from None
    if binary.description != path:
        raise RecordedBinaryError(f"{path} must have the name {binary.description.name}; restore it from git")
    return binary
