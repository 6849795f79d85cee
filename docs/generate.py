"""Make every generated page anew: pages and pictures of results, their index, the generated parts of docs/."""

from __future__ import annotations

import sys
from pathlib import Path

from hopper_gemm.study.reader import has_rows
from hopper_gemm.tables.index import write_index
from hopper_gemm.tables.publish import publish

ROOT = Path(__file__).parents[1]


def main(folders: list[str]) -> None:
    """Publish the named results folders, or all of them; then the index."""
    for root in sorted((ROOT / "results").glob("h*")):
        for folder in sorted(path for path in root.rglob("*") if path.is_dir()):
            if (not folders or str(folder.relative_to(ROOT)) in folders) and has_rows(folder):
                publish(folder, pictures=folder.parent == root)  # not of the many searches of a list
        write_index(root)


if __name__ == "__main__":
    main([name.rstrip("/") for name in sys.argv[1:]])
