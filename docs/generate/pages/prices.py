"""Tables of batch invariance (bits and price), of rows out of TMA's reach, of layers, and of the examples."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from docs.generate.measurements import measurement
from docs.generate.pages.means import mean_figure, of_boards
from docs.generate.pages.wording import wrapped
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.statistics import Ratio
from hopper_gemm.tune.tables.comparison import geometric_mean
from hopper_gemm.tune.tables.pivot import markdown
from tests.verify.rows import read_rows
from tests.verify.tally import counted, torch_lines

NOT_YET = "Not run on a GPU yet."

OVER_MM = {"over `torch.mm`": ("", "torch", "ours")}
FIXED = {"over it with `:16:8`": (":16:8", "torch", "ours")}
OVER_TRITON = {"over Triton": ("", "triton", "ours")}
OVER_PLAIN = {"over ours without the condition": ("", "plain", "ours")}
"""Columns: (workspace, other arm, own arm) of ``benchmarks.invariant``."""

LISTS: dict[str, tuple[str, dict[str, tuple[str, str, str]]]] = {
    "suite": (
        "On the [suite](suite.md); above 1 the batch-invariant kernels are faster",
        OVER_MM | FIXED | OVER_PLAIN,
    ),
    "held-out": (
        "On problems that nobody tuned, drawn from those of the [map](suite.md#problems-that-nobody-tuned) to which "
        "nothing was fitted",
        OVER_MM | OVER_PLAIN,
    ),
    "deep": (
        "Few columns and a long k, where the cut matters",
        OVER_MM | OVER_PLAIN,
    ),
    "rows": (
        "Beside the persistent Triton kernel of [batch_invariant_ops]"
        "(https://github.com/thinking-machines-lab/batch_invariant_ops), with its one tile for all sizes (servers have "
        "tuned tables of tiles since; those were not timed); bf16, the weight (n, k) as linear layers hold it, for "
        "which that kernel has a tile of 128x128",
        OVER_TRITON | OVER_MM | OVER_PLAIN,
    ),
    "rows-fp16": (
        "The same in fp16 with the second matrix contiguous along n, for which that kernel has a tile of 128x256",
        OVER_TRITON | OVER_MM | OVER_PLAIN,
    ),
}
"""Lists of problems, with what is said of them, and their columns."""


def bits(folder: Path | None = None) -> str:
    """Kernels and outputs that were compared with the newest sources, by what was launched; and the digests of those
    sources."""
    rows = read_rows(folder or results_root() / "verification/batch-invariance")
    if not rows:
        return NOT_YET
    now = [row for row in rows if row.kernel == rows[-1].kernel]
    lines = []
    for kind in [*dict.fromkeys(row.kind for row in now), ""]:
        own = [row for row in now if kind in ("", row.kind)]
        status = Counter(row.status for row in own)
        other = status["wrong_result"]
        counts = len(own), counted(own), other, len(own) - status["ok"] - status["skipped"] - other
        boards = len({row.board for row in own if row.board})
        lines.append([kind or "all", *(f"{count:,}" for count in counts), str(boards)])
    kernels, verifiers = (
        ", ".join(dict.fromkeys(f"`{getattr(row, name)}`" for row in now)) for name in ("kernel", "verifier")
    )
    gpus = ", ".join(dict.fromkeys(row.gpu for row in now if row.gpu))
    head = ["launched", "jobs", "outputs with the reference's bits", "jobs with other bits", "failed else", "boards"]
    reasons = Counter(row.reason.split(":")[0] if row.status == "crash" else row.status for row in now)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if reason not in ("ok", "skipped"))
    about = f" Failed: {told}." if told else ""
    today = kernel_digest()
    of = "today's" if rows[-1].kernel == today else f"an earlier one; today's, `{today}`, was not compared yet"
    return f"{markdown(head, lines)}\n\nOn {gpus}; kernel {kernels}, {of}; verifier {verifiers}.{about}"


def torch_changes(folder: Path | None = None) -> str:
    """Outputs and rows of torch.mm that change with the number of rows, by cuBLAS workspace."""
    name = "verification/batch-invariance/torch-mm.csv"
    path = measurement(name) if folder is None else folder / "torch-mm.csv"
    if not path.is_file():
        return NOT_YET
    rows = list(csv.DictReader(path.read_text().splitlines()))
    ran = ", ".join(dict.fromkeys(f"{row['gpu']}, torch {row['torch']}" for row in rows))
    return "\n".join([*torch_lines(rows), "", f"On {ran}."])


def costs(path: Path | None = None) -> str:
    """Our batch-invariant kernels over torch.mm, Triton and ours without the condition: a table for each list of
    problems that was measured."""
    own = {name: invariant_rows(name, path) for name in LISTS}
    told = [
        f"{wrapped(about + ':')}\n\n{_table(own[name], arms)}" for name, (about, arms) in LISTS.items() if own[name]
    ]
    if path is None:
        table = _table(invariant_on_h100(), OVER_MM | FIXED | OVER_PLAIN)
        told.insert(1, f"The suite on an H100 ([rows](../results/measurements/invariance-h100.jsonl)):\n\n{table}")
    return "\n\n".join(told) or "Not measured on a GPU yet: `python -m benchmarks.invariant` measures it."


def invariant_on_h100() -> list[dict[str, Any]]:
    """Rows of the suite on an H100."""
    return invariant_rows("suite", measurement("measurements/invariance-h100.jsonl"))


def invariant_rows(name: str, path: Path | None = None) -> list[dict[str, Any]]:
    """Rows of ``benchmarks.invariant`` of one list."""
    found = path or measurement("measurements/invariance.jsonl")
    rows = map(json.loads, found.read_text().splitlines() if found.is_file() else ())
    return [row for row in rows if row["list"] == name]


def invariant_ratios(rows: Sequence[dict[str, Any]], workspace: str, other: str, own: str) -> dict[str, float]:
    """How many times as fast as one arm another was, by problem; of several boards the mean."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["workspace"] == workspace and {other, own} <= set(row["us"]):
            ratio = median(map(truediv, row["us"][other], row["us"][own]))
            found.setdefault(str(GemmProblem(*row["problem"])), []).append(ratio)
    return {problem: geometric_mean(ratios) for problem, ratios in found.items()}


def invariant_published(rows: Sequence[dict[str, Any]], workspace: str, other: str, own: str) -> dict[str, Ratio]:
    """:func:`invariant_ratios` as published."""
    measured = [row for row in rows if row["workspace"] == workspace and {other, own} <= set(row["us"])]
    return _as_published(measured, invariant_ratios(rows, workspace, other, own), other)


def _as_published(rows: Sequence[dict[str, Any]], ratios: Mapping[str, float], other: str) -> dict[str, Ratio]:
    """Ratios by problem with the interval that holds for other processes and boards; the time of the other arm says the
    class of duration."""
    times: dict[str, list[float]] = {}
    for row in rows:
        sizes = row["problem"]
        problem = GemmProblem(**sizes) if isinstance(sizes, dict) else GemmProblem(*sizes)
        times.setdefault(str(problem), []).append(median(row["us"][other]))
    return {problem: of_boards(ratio, times[problem][0], len(times[problem])) for problem, ratio in ratios.items()}


def measured_rows(name: str, path: Path | None = None) -> list[dict[str, Any]]:
    """Rows of a table that a benchmark wrote, of each problem, finish and board the newest."""
    found = path or measurement(f"measurements/{name}.jsonl")
    rows = (json.loads(line) for line in found.read_text().splitlines())
    return list({(str(row["problem"]), row.get("finish"), row.get("board")): row for row in rows}.values())


def over(row: Mapping[str, Any], other: str) -> float:
    """How many times as fast as another arm ours was: the median of the rounds."""
    return median(map(truediv, row["us"][other], row["us"]["ours"]))


def with_boards(columns: Sequence[str], lines: Sequence[Sequence[str]], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table, with a column for the board where the rows have several; a line for each row, then more of all."""
    boards = [row.get("board", "not noted")[:12] for row in rows]
    if len(set(boards)) == 1:
        return markdown(columns, lines)
    named = zip(lines, [*boards, *[""] * (len(lines) - len(boards))], strict=True)
    return markdown([*columns, "board"], [[*line, board] for line, board in named])


def out_of_reach(path: Path | None = None) -> dict[str, float]:
    """Problems with rows that TMA cannot reach, and their speedup over torch.mm, of several boards the mean."""
    found: dict[str, list[float]] = {}
    for row in measured_rows("ragged", path):
        found.setdefault(str(GemmProblem(**row["problem"])), []).append(over(row, "torch.mm"))
    return {problem: geometric_mean(ratios) for problem, ratios in found.items()}


def out_of_reach_published(path: Path | None = None) -> dict[str, Ratio]:
    """:func:`out_of_reach` as published."""
    return _as_published(measured_rows("ragged", path), out_of_reach(path), "torch.mm")


def ragged(path: Path | None = None) -> str:
    """These problems one by one: times, padding included and alone, and speedup over torch.mm."""
    rows = measured_rows("ragged", path)
    lines = []
    for row in rows:
        times = (f"{median(row['us'][arm]):.1f}" for arm in ("torch.mm", "ours", "padding"))
        problem, off = str(GemmProblem(**row["problem"])), ", ".join(row["out_of_reach"].upper())
        host = f"{row['host_us']['ours']:.1f} us ({row['host_us']['torch.mm']:.1f})"
        lines.append([problem, off, *times, f"{over(row, 'torch.mm'):.3f}x", host])
    lines.append(["geometric mean", "", "", "", "", mean_figure(out_of_reach_published(path).values()), ""])
    times_of = ("torch.mm, us", "ours, us", "padding alone, us")
    return with_boards(("problem", "out of reach", *times_of, "over torch.mm", "host (torch.mm)"), lines, rows)


LAYERS = {
    "bias": "`linear` with bias",
    "bias+gelu": "`linear` with bias and gelu",
    "bias+gelu_tanh": "`linear` with bias and gelu by tanh",
    "silu*up": "`swiglu`",
}
"""Finishes that were timed, as the page calls them."""

BESIDE = {
    "eager": "over torch, operator by operator",
    "compiled": "over torch.compile",
    "quack": "over quack's fused call",
    "torch.mm": "over torch.mm alone",
    "plain product": "over our product alone",
}
"""Arms beside which a layer was timed, with the name of their column."""

SLOWER = 0.98
"""Speed of a layer, over that of its product alone, below which the page says what the rest of it costs."""

VARIANTS = {
    "as it was": "none of the steps",
    "exact as for fp32": "gelu as exact as for fp32",
    "not in order, kept": "registers kept, not in order",
    "not in order": "not in order",
}
"""Variants of a kernel with a finish that were timed beside it, as the page calls them."""


def finished_rows(path: Path | None = None) -> list[dict[str, Any]]:
    """Rows of layers: of the newest kernel first, then of earlier ones."""
    rows = measured_rows("linear", path)
    return sorted(rows, key=lambda row: row.get("kernel") != rows[-1].get("kernel"))


def layers(path: Path | None = None) -> str:
    """Layers in one launch over the same in several, and over a product alone, with a sentence on where what follows
    the product costs; by the newest kernel that was timed."""
    every = finished_rows(path)
    newest = every[0].get("kernel")
    rows = [row for row in every if row.get("kernel") == newest]
    arms = [name for name in BESIDE if any(name in row["us"] for row in rows)]
    lines, slower = [], dict[str, dict[str, list[str]]]()
    for row in rows:
        layer, place, alone = LAYERS[row["finish"]], "x".join(map(str, row["problem"])), over(row, "plain product")
        ratios = [f"{over(row, name):.3f}x" if name in row["us"] else "" for name in arms]
        kernel = f"`{newest[:6]}`" if newest else "an earlier one"
        lines.append([layer, place, f"{median(row['us']['ours']):.1f}", *ratios, kernel])
        if alone < SLOWER:
            slower.setdefault(layer, {}).setdefault(place, []).append(f"{1 / alone:.3f}")
    ran = ", ".join(dict.fromkeys(f"{row['gpu']} with torch {row['torch']}" for row in rows))
    told = "".join(
        f" {layer} takes over {100 * (1 / SLOWER - 1):.0f} % longer than its product alone: "
        + ", ".join(f"{' and '.join(times)} times at {place}" for place, times in of.items())
        + "."
        for layer, of in slower.items()
    )
    table = with_boards(("layer", "m x n x k", "us", *(BESIDE[name] for name in arms), "kernel"), lines, rows)
    return f"{table}\n\n{wrapped(f'Isolated, medians of the rounds, on an {ran}.{told}')}"


def variants(path: Path | None = None) -> str:
    """Time of a layer without a step of its epilogue, over its time with all."""
    rows = [row for row in finished_rows(path) if set(VARIANTS) & set(row["us"])]
    lines = [
        [
            LAYERS[row["finish"]],
            "x".join(map(str, row["problem"])),
            *(f"{over(row, name):.3f}x" if name in row["us"] else "" for name in VARIANTS),
        ]
        for row in rows
    ]
    return markdown(("layer", "m x n x k", *VARIANTS.values()), lines)


COMPILED = tuple(f"A layer of 4096 channels on cuda, over torch.compile{more}" for more in ("", ", all picked"))
"""Titles of the tables of a decoder layer beside torch.compile: few sizes tuned; all picked."""

LAYER_ON_H100 = "A layer of 4096 channels on cuda, over torch, on an H100"
"""Title of the table of a decoder layer over torch."""

COMPILED_IN_GRAPHS = f"{COMPILED[0]}, in CUDA graphs"
"""Title of a later table, of CUDA graphs alone."""

COMPILED_ON_H100S = tuple(
    f"{COMPILED[0]}, on an H100{more}"
    for more in (
        *("", ", the run before on another board", ", a third board", ", a fourth board"),
        ", a fifth board, fusion by fusion",
    )
)
"""Titles of the same table of five H100s, before gates had kernels of their own: their rows stay, the page leaves them
out."""

WITH_GATES = tuple(
    f"{COMPILED[0]}, on an H100, {more}"
    for more in (
        "a sixth board, gates by kernels of their own",
        *(f"{board} board, with our products among the compiler's choices" for board in ("a seventh", "an eighth")),
    )
)
"""Titles of the same table of three H100s since."""

MODEL, STEP = "Logits and time on cuda, CUDA graphs", "A step of 8192 bytes on cuda"
EXPERTS = "128 experts of 2048 x 768, 8 a token, on cuda, over torch"
"""Titles of the tables of a model, a step of training, a layer of experts."""


def in_models(examples: Path | None = None) -> str:
    """Sentence on patched models and fused layers, each as the least and the greatest of its speedups."""
    tables = example_tables(examples)
    timed, compiled = tables[LAYER_ON_H100]["rows"], [row for title in WITH_GATES for row in tables[title]["rows"]]
    layer, fused = (_range(row[name] for row in timed) for name in ("patched graph", "fused graph"))
    beside, within = (_range(row[name] for row in compiled) for name in ("fused graph", "fused, compiled graph"))
    model = defaultdict[str, list[float]](list)
    for table in runs_of(MODEL, examples):
        for row in table["rows"]:
            model[row["phase"]].append(row["speedup"])
    phases = " and ".join(f"{_range(ratios)} ({phase})" for phase, ratios in model.items())
    return wrapped(
        f"In models, in CUDA graphs: a layer of Llama-3-8B on an NVIDIA H100, of 1 to 8192 tokens, runs patched at "
        f"{layer} the speed of torch, with fused epilogues at {fused}; beside torch.compile, on three H100s, fused and "
        f"compiled at {within}, and fused alone at {beside}: a compiled model stays compiled. A patched model ran on "
        f"an H200 at {phases}. [All of them](docs/models.md#models)."
    )


def _range(ratios: Iterable[float]) -> str:
    found = sorted(ratios)
    return f"{found[0]:.3f}x to {found[-1]:.3f}x"


def runs_of(title: str, path: Path | None = None) -> list[dict[str, Any]]:
    """Every recorded run of one table of the examples."""
    lines = (path or measurement("measurements/examples.jsonl")).read_text().splitlines()
    return [table for table in map(json.loads, lines) if table["table"] == title]


def example_tables(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """The tables of the examples by title, the newest of each."""
    found = path or measurement("measurements/examples.jsonl")
    return {table["table"]: table for table in map(json.loads, found.read_text().splitlines())}


def examples(path: Path | None = None) -> str:
    """The tables of the examples as they printed them on a GPU, the newest of each; none of
    :data:`COMPILED_ON_H100S`."""
    return "\n\n".join(
        f"{title}, {table['device']} with torch {table['torch']}:\n\n{_printed(table['rows'])}"
        for title, table in example_tables(path).items()
        if title not in COMPILED_ON_H100S
    )


def _printed(rows: Sequence[Mapping[str, Any]]) -> str:
    words = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    return markdown(tuple(rows[0]), words)


def _table(rows: Sequence[dict[str, Any]], arms: Mapping[str, tuple[str, str, str]]) -> str:
    """A line for each problem, then the geometric means and the least; a column for each (workspace, other, own)."""
    ratios = [invariant_ratios(rows, *arm) for arm in arms.values()]
    problems = dict.fromkeys(str(GemmProblem(*row["problem"])) for row in rows)
    lines = [[one, *(f"{found[one]:.3f}x" if one in found else "" for found in ratios)] for one in problems]
    every = [invariant_published(rows, *arm) for arm in arms.values()]
    lines.append(["geometric mean", *(mean_figure(found.values()) if found else "" for found in every)])
    lines.append(["least", *(f"{min(found.values()):.3f}x" if found else "" for found in ratios)])
    boards = ", ".join(f"{gpu} `{board[:12]}`" for gpu, board in dict.fromkeys((r["gpu"], r["board"]) for r in rows))
    kernels = ", ".join(dict.fromkeys(f"`{row['kernel'][:6]}`" for row in rows))
    return f"{markdown(['problem', *arms], lines)}\n\nIsolated, on {boards}; kernel {kernels}."
