"""Options that several commands have, and what their text means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from hopper_gemm.model.finish import ACTIVATIONS, Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import BLOCK, DTYPES, GemmProblem
from hopper_gemm.model.recipe import finish_of, problem_from, recipe_of
from hopper_gemm.tune.study.files import here_or_recorded

DtypeName = Literal[
    "bf16", "fp16", "bf16_fp32", "fp16_fp32", "e4m3", "e4m3_bf16", "e4m3_fp16", "e4m3_fp32", "e5m2", "e5m2_bf16",
    "e5m2_fp16", "e5m2_fp32",
]  # fmt: skip
"""The names of :data:`hopper_gemm.model.problem.DTYPES` and ``FP8_DTYPES``, and the FP8 types alone, whose output is
bf16."""
ScalesName = Literal["tensor", "row", "blocks"]
LayoutsName = Literal["kk", "mk", "kn", "mn"]
RegimeName = Literal["burst", "steady"]
ContextName = Literal["isolated", "chained"]
SamplerName = Literal["gp", "tpe", "prior", "random", "exhaustive"]
AnyBackend = Literal["auto", "cuda", "replay"]
CudaOrReplay = Literal["cuda", "replay"]
TableForm = Literal["csv", "json", "markdown", "html"]

TYPES = f"Element types, of operands and output or of operands, then output: {', '.join(DTYPES)}"
KNOWN = "Begin with the best configs known of the problem and of those near it. Default: yes."
TUNED = "Tuned table. Default: the recorded one of this kind of GPU."

M = Annotated[int, Argument(metavar="M", help="Rows of A and C.")]
N = Annotated[int, Argument(metavar="N", help="Columns of B and C.")]
K = Annotated[int, Argument(metavar="K", help="Columns of A, rows of B.")]
MaybeM = Annotated[int | None, Argument(metavar="[M]", help="Rows of A and C.")]
MaybeN = Annotated[int | None, Argument(metavar="[N]", help="Columns of B and C.")]
MaybeK = Annotated[int | None, Argument(metavar="[K]", help="Columns of A, rows of B.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print a line for every point.")]
Dtype = Annotated[DtypeName, Option(help=f"{TYPES}; a list says so itself. With --scales: e4m3, e5m2, e4m3_fp32 ...")]
Scales = Annotated[ScalesName | None, Option(help="Of FP8 operands, those of a list too.")]
Promote = Annotated[
    int, Option(help="Of FP8, elements of k between promotions of the sums: 128, 256 or 512. Default: fast sums.")
]
Long = Annotated[bool, Option("--long", help="Name each parameter of a config instead of the shorthand.")]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout and nothing else there.")]
Gpus = Annotated[str, Option(help="Indices of GPUs among those that CUDA_VISIBLE_DEVICES shows, as 0,1.")]
Shared = Annotated[bool, Option("--shared", help="Measure although another process keeps the GPU busy.")]
Cluster = Annotated[bool, Option("--cluster", help="Measure on workers that join; prints how other hosts join.")]
Host = Annotated[str, Option(help="With --cluster: HOST or HOST:PORT to listen on.")]
BackendName = Annotated[AnyBackend, Option(help="cuda, replay, or auto: cuda where there is a Hopper GPU.")]
StudyOut = Annotated[Path | None, Option(help="Results folder. Default: results/local/<gpu>/<name>.")]
StudyFolder = Annotated[
    Path, Argument(metavar="RESULTS_DIR", help="A folder such as results/h200/seed-table.", callback=here_or_recorded)
]
Shapes = Annotated[Path | None, Option(help="A list of problems, as TOML, such as sweeps/shapes/suite.toml.")]
Recorded = Annotated[Path | None, Option("--from", help="Recorded study to replay. Default: the one of the same name.")]
TunedTable = Annotated[Path | None, Option("--from", help=TUNED)]
TunedFirst = Annotated[bool, Option("--known/--no-known", help=KNOWN)]
Trials = Annotated[int | None, Option(min=0, help="Stop after so many points; the rest can follow later.")]
Limit = Annotated[int | None, Option(min=1, help="Stop after so many rows; the rest can follow later.")]
Groups = Annotated[int | None, Option(help="Number of groups or matrices of a product of such.")]
Grouping = Annotated[str, Option(help="What groups are: rows, batch, depth, masked or masked_depth.")]
Layouts = Annotated[LayoutsName, Option(help="Contiguous axis of A, then of B: kk, mk, kn or mn.")]
BatchInvariant = Annotated[
    bool, Option("--batch-invariant", help="A row's bits may not depend on the other rows, as matmul's argument.")
]
Kind = Annotated[
    str | None, Option("--gpu", help="h100, h200 (SXM) or the GPU here. Default: the GPU here; without one h100.")
]
Sms = Annotated[int | None, Option(min=1, help="SMs of the GPU. Default: of the one here, else 132.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Parameter of the config, as cluster=2x1; may be repeated."),
]
Finish = Annotated[
    str | None,
    Option(
        "--epilogue",
        metavar="STEPS",
        help="What follows the product, as bias+gelu or residual; silu*up is swiglu, with N of w_gate_up.",
    ),
]
Sizes = Annotated[list[int] | None, Argument(metavar="[M N K]...", help="Sizes of problems, instead of a list.")]
Regime = Annotated[RegimeName, Option(help="burst, or steady: of a list only the problems marked so.")]
Context = Annotated[
    ContextName, Option(help="isolated: another kernel between any two launches; chained: back to back.")
]
OnlyRegime = Annotated[RegimeName | None, Option(help="Only this regime.")]
OnlyContext = Annotated[ContextName | None, Option(help="Only this context: isolated or chained.")]
OnlyProblem = Annotated[str | None, Option(help="Only this problem, as MxNxK.")]


def with_rule(problems: Iterable[GemmProblem], batch_invariant: bool) -> tuple[GemmProblem, ...]:
    """Return the problems, all of them batch-invariant if ``batch_invariant``."""
    return tuple(replace(problem, batch_invariant=True) if batch_invariant else problem for problem in problems)


def with_recipe(
    problems: Iterable[GemmProblem], dtype: str, scales: str | None, promote: int = 0
) -> tuple[GemmProblem, ...]:
    """Return the problems, each once, all of them of a type other than bf16, with ``scales`` of FP8; outputs of
    ``e4m3`` are bf16."""
    if not scales:
        if promote:
            raise ValueError(f"--promote must stand beside --scales but got {promote} alone; add --scales row")
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype} must stand beside --scales, which are missing; add --scales row")
        return tuple(
            dict.fromkeys(problem if dtype == "bf16" else replace(problem, dtype=dtype) for problem in problems)
        )
    dtype = dtype if "_" in dtype or dtype in DTYPES else f"{dtype}_bf16"
    recipe = {"dtype": dtype, "scales": scales, "promote": promote or BLOCK * (scales == "blocks")}
    return tuple(dict.fromkeys(problem_from(**{**problem.as_dict(), **recipe}) for problem in problems))


def finish_for(problem: GemmProblem, text: str | None) -> Epilogue | None:
    """Return the finish of a product whose steps ``--epilogue`` names as ``str`` of a finish does, with the scales of
    the problem; None without."""
    if text is None:
        return None
    words = text.split("+")
    activation = next((word.removesuffix("*up") for word in words if word.removesuffix("*up") in ACTIVATIONS), "")
    scale, bias, residual = (step in words for step in ("scale", "bias", "residual"))
    finish = Epilogue(scale, bias, activation, residual, gated=f"{activation}*up" in words)
    if not text or str(finish) != text:
        names = f"scale, bias, one of {', '.join(ACTIVATIONS)} (before *up if gated), residual"
        raise ValueError(f"--epilogue must be of {names}, in this order with + between, but got {text!r}")
    return replace(finish, scales=getattr(problem, "scales", ""))


def as_called(
    problem: GemmProblem, groups: int | None, grouping: str, epilogue: str | None
) -> tuple[GemmProblem, Epilogue | None]:
    """Return a problem in as many groups (``--groups``), if any, and its finish: the steps of ``--epilogue``, and the
    scales of groups, which are no part of their problem."""
    finish = finish_for(problem, epilogue)
    if groups is None:
        return problem, finish
    like = problem.m, problem.n, problem.k, problem.dtype, problem.layouts, problem.batch_invariant, problem.promote
    return GroupedProblem(*like, groups=groups, grouping=grouping), finish or finish_of(problem)


def titled(name: str, problems: Iterable[GemmProblem]) -> str:
    """Return the name of a list, with type and recipe if all of its problems are of one of FP8."""
    recipes = {f" {problem.dtype} {recipe_of(problem)}" * problem.is_fp8 for problem in problems}
    return name + (recipes.pop() if len(recipes) == 1 else "").replace("_", "-").replace(" ", "-")


def gpus_of(text: str) -> list[int]:
    """Return the indices that ``--gpus`` names."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 6 for word in words) or len({*map(int, words)}) < len(words):
        raise ValueError(f"--gpus must be indices with commas, each once, such as 0,1, but got {text!r}")
    return [*map(int, words)]


def is_port(text: str) -> bool:
    """Return True if a text is a port number."""
    return text.isdecimal() and len(text) < 6 and int(text) < 65536


def listening(cluster: bool, host: str) -> str:
    """Return the address that workers of other hosts join, from ``--host``; empty without ``--cluster``."""
    name, _, port = host.partition(":")
    if not name or (":" in host and not is_port(port)):
        raise ValueError(f"--host must be HOST or HOST:PORT with a port below 65536 but got {host!r}")
    return host if cluster else ""


def config_values(settings: list[str]) -> dict[str, Any]:
    """Return the fields of a config from ``name=value`` texts; earlier names and ``cluster=2x1`` are understood.

    Raises:
        ValueError: a text is none, or names no parameter.
    """
    from hopper_gemm.tune.study.spec import present

    values: dict[str, Any] = {}
    for text in settings:
        name, equals, word = text.partition("=")
        if not equals:
            raise ValueError(f"--set must be like tile_m=256 but got {text!r}")
        number = int(word) if word.lstrip("-").isdecimal() and len(word) < 20 else word
        fields = present(name, {"true": True, "false": False}.get(word.lower(), number))
        if again := [field for field in fields if field in values]:
            raise ValueError(f"--set names {again[0]} twice; leave one of them out")
        values |= fields
    return values
