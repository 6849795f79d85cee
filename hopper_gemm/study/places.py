"""Where studies and their questions lie, and how a path is shown."""

from __future__ import annotations

from pathlib import Path

from hopper_gemm.model.tuned import results_root


def local_root() -> Path:
    """Where studies go that are measured or replayed here: beside the recorded ones in a checkout, else into the
    current folder."""
    package = Path(__file__).parents[1]
    recorded = results_root()
    return (Path.cwd() / "results" if recorded.is_relative_to(package) else recorded) / "local"


def ladder_file() -> Path:
    """The ladder of the design study, in a checkout."""
    return results_root().parent / "sweeps" / "ladder.toml"


def suite_file() -> Path:
    """The problems that the kernel is judged by, in a checkout."""
    return results_root().parent / "sweeps" / "shapes" / "suite.toml"


def shown(path: Path) -> str:
    """A path as results and messages show it: from the checkout on, where it lies in one."""
    root = results_root().parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def here_or_in_checkout(folder: Path) -> Path:
    """A folder that was named: a relative one that is not here is looked for in the checkout."""
    inside = results_root().parent / folder
    return inside if not folder.is_dir() and inside.is_dir() else folder
