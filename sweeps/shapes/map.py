"""Draws the problems of map.toml: ``python -m sweeps.shapes.map > sweeps/shapes/map.toml``.

600 problems that people run, 250 log-uniform ones in equal numbers by torch.mm's time, 150 of ragged or odd sizes.
held_out.toml names what nothing is fitted to; see :class:`benchmarks.held_out.HeldOut`.

Sizes are facts of public lists and model configs: vLLM's benchmarks/kernels/weight_shapes.py (a layer's weights of
fourteen models; DeepSeek-Coder-V2-Lite among them), the models' own config.json (Llama 3.2, Qwen2.5, Qwen3, Gemma 2,
GPT-2, BERT), baidu-research/DeepBench (code/kernels/gemm_problems.h) and meta-pytorch/tritonbench
(input_configs/inductor_oss/h100/shapes_mm.json: what compiled models multiply).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.held_out import HeldOut, read_held_out
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.study.shapes import STRATA, expected_seconds, stratum_of

SEED = 27
PEOPLE, UNIFORM, RAGGED = 600, 250, 150
SEARCHED, HELD_OUT_MAX, OF_HELD_OUT = 200, 150, 60

LARGEST = 2**43
"""Most m * n * k: a launch of 20 ms."""

SIDE_MAX = 65536

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
TRAINED = (2048, 4096, 8192, 16384, 32768)

WEIGHTS = {
    "llama-2-7b": ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)),
    "llama-2-13b": ((15360, 5120), (5120, 5120), (27648, 5120), (5120, 13824)),
    "llama-3-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "llama-3-70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "llama-3-70b-tp8": ((1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
    "llama-3.1-405b-tp8": ((2304, 16384), (16384, 2048), (13312, 16384), (16384, 6656)),
    "llama-3.2-3b": ((5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192)),
    "mistral-large-tp8": ((1792, 12288), (12288, 1536), (7168, 12288), (12288, 3584)),
    "command-a-tp8": ((9216, 12288), (12288, 4608), (1792, 12288), (12288, 1536)),
    "deepseek-v2-lite": (
        *((3072, 2048), (4096, 2048), (2048, 2048), (576, 2048), (21888, 2048), (2048, 10944)),
        *((2816, 2048), (2048, 1408)),
    ),
    "qwen3-4b": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
    "qwen3-8b": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    "qwen3-14b": ((7168, 5120), (5120, 5120), (34816, 5120), (5120, 17408)),
    "qwen3-32b": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
    "qwen3-30b-a3b": ((5120, 2048), (2048, 4096), (128, 2048), (1536, 2048), (2048, 768)),
    "gpt-2": ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768)),
    "bert-large": ((3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)),
}
"""(n, k) of the weights of a layer: attention's inputs together, its output, gate and up together, down; a head of the
vocabulary where it is multiplied alone. ``tp8``: of one of eight GPUs. Held-out families stand in held_out.toml."""

DEEPBENCH = (
    *((tokens, side, side) for side in (1760, 2048, 2560, 4096) for tokens in (16, 32, 64, 128, 7000)),
    *((9124, 5124, k) for k in (1760, 2048, 2560, 4096)),
    *((8457, 35, k) for k in (1760, 2048, 2560, 4096)),
    *((tokens, n, k) for tokens in (16, 32, 64, 128) for n, k in ((7680, 2560), (3072, 1024))),
    *((tokens, n, k) for tokens in (1500, 3000, 6000, 24000) for n, k in ((6144, 2048), (4608, 1536), (8448, 2816))),
    *((tokens, n, k) for tokens in (1500, 6000, 24000, 48000) for n in (512, 1024) for k in (1536, 2560)),
    *((tokens, n, 500000) for tokens in (1, 8, 16) for n in (512, 1024)),
    *((700, 1024, 512), (700, 5124, 2048), (1500, 5124, 2560), (1500, 128, 1280), (1500, 176, 1408), (1500, 4224, 176)),
)
"""Sizes of DeepBench; its matrices are column-major, so that its n, the batch, is m here."""

COMPILED = (
    *((24576, 128, 384, "kk"), (200704, 128, 96, "kk"), (3136, 1024, 2048, "kk"), (1568, 960, 160, "kk")),
    *((200704, 128, 256, "kk"), (4096, 4096, 1024, "kk"), (156800, 64, 192, "kk"), (6272, 192, 1152, "kk")),
    *((512, 12288, 4096, "kn"), (3072, 768, 128, "mn"), (200704, 128, 128, "kn"), (3136, 384, 64, "kk")),
    *((4096, 4096, 1024, "kn"), (1568, 2048, 512, "kk"), (25088, 112, 480, "kk"), (4096, 1024, 4096, "mn")),
    *((6272, 512, 1024, "kk"), (1000, 2048, 128, "mn"), (512, 16, 1024, "mn"), (32, 960, 1280, "kn")),
    *((6272, 1024, 256, "kk"), (3136, 128, 768, "kk"), (25088, 232, 232, "kk"), (4096, 768, 3072, "kn")),
    *((4, 4096, 9216, "kk"), (1024, 512, 1728, "kk"), (3136, 96, 384, "kk"), (1536, 6144, 1024, "mn")),
    *((1024, 1024, 4096, "mn"), (12672, 768, 3072, "kn"), (401408, 96, 96, "kk"), (16384, 128, 128, "kk")),
    *((8192, 768, 768, "kn"), (2048, 512, 512, "kk"), (512, 512, 2040, "mn"), (128, 3072, 768, "kn")),
    *((16384, 256, 128, "kn"), (25088, 128, 512, "kk"), (36992, 192, 768, "kk"), (144, 144, 65536, "mn")),
    *((1024, 4608, 1536, "kn"), (4096, 640, 160, "kk"), (2048, 1024, 1024, "kk"), (128, 640, 1000, "kn")),
    *((100352, 112, 672, "kk"), (3072, 768, 175360, "mn"), (8192, 3072, 768, "kk"), (2304, 768, 12608, "mn")),
    *((1024, 1024, 64, "kk"), (1024, 64, 1024, "kn"), (2048, 2048, 128, "kk"), (2048, 128, 2048, "kn")),
)
"""What compiled models multiply, by tritonbench's record, where TMA reaches it; and an attention head's two products
(the last four)."""


@dataclass(frozen=True)
class Entry:
    """A problem of the list: its part, and where its size comes from."""

    problem: GemmProblem
    part: str
    family: str = ""


def layers(family: str, weights: Iterable[tuple[int, int]]) -> Iterator[Entry]:
    """A family's problems: the forward pass for every number of tokens, and for the numbers that training uses the
    gradients of activations (both operands row-major, ``kn``) and of weights (``mn``), and a weight stored by columns
    with activations likewise (``mk``)."""
    for n, k in weights:
        for tokens in TOKENS:
            yield Entry(GemmProblem(tokens, n, k), "people", family)
        for tokens in TRAINED:
            yield Entry(GemmProblem(tokens, k, n, layouts="kn"), "people", family)
            yield Entry(GemmProblem(n, k, tokens, layouts="mn"), "people", family)
        yield Entry(GemmProblem(TRAINED[0], n, k, layouts="mk"), "people", family)


def people(held: HeldOut, rng: random.Random) -> list[Entry]:
    """Problems that people run: the public lists whole, :data:`OF_HELD_OUT` of the held-out models, and of all other
    layers a sample."""
    found = {Entry(GemmProblem(*sizes), "people", "deepbench") for sizes in DEEPBENCH}
    found |= {Entry(GemmProblem(*sizes, layouts=way), "people", "compiled") for *sizes, way in COMPILED}
    chosen = sorted(found, key=_order)
    unseen, seen = (
        sorted({one.problem: one for one in pool if _fits(one.problem)}.values(), key=_order)
        for pool in (
            [one for name, pairs in held.weights.items() for one in layers(name, pairs)],
            [one for name, pairs in WEIGHTS.items() for one in layers(name, pairs) if not _of_held_out(one, held)],
        )
    )
    return _first([*chosen, *rng.sample(unseen, OF_HELD_OUT), *rng.sample(seen, PEOPLE)], PEOPLE)


def _of_held_out(entry: Entry, held: HeldOut) -> bool:
    """Return True if a problem would be held out for its weight: those are drawn with the held-out models."""
    return held.model_copy(update={"octaves": (0,) * len(STRATA)}).has(entry.problem)


def uniform(rng: random.Random) -> Iterator[Entry]:
    """Problems with sides drawn log-uniformly, multiples of 8 but for m, equally many in each stratum."""
    each = Counter({stratum: UNIFORM // len(STRATA) for stratum in range(len(STRATA))})
    while +each:
        m, n, k = (math.exp(rng.random() * math.log(SIDE_MAX)) for _ in range(3))
        layouts = rng.choice(("kk", "kk", "kk", "kn", "mn"))
        step = 8 if layouts[0] == "m" else 1
        sides = (of * max(1, round(side / of)) for of, side in ((step, m), (8, n), (8, k)))
        problem = GemmProblem(*sides, "bf16", layouts)
        stratum = stratum_of(expected_seconds(problem))
        if _fits(problem) and each[stratum]:
            each[stratum] -= 1
            yield Entry(problem, "uniform")


def ragged(rng: random.Random) -> Iterator[Entry]:
    """Half with n or k no multiple of 8, half with an odd m alone; sides log-uniform from 16 to 16384."""
    for number in range(10**6):
        m, n, k = (math.exp(math.log(16) + rng.random() * math.log(1024)) for _ in range(3))
        odd = 2 * round(m / 2) + 1
        if number % 2:
            problem = GemmProblem(odd, 8 * round(n / 8), 8 * round(k / 8))
        else:
            n, k = (side + (side % 8 == 0) for side in (round(n), round(k)))
            loose = rng.randrange(3)
            problem = GemmProblem(
                round(m), 8 * round(n / 8) if loose == 1 else n, 8 * round(k / 8) if loose == 2 else k
            )
        if _fits(problem):
            yield Entry(problem, "ragged")


def drawn() -> list[tuple[Entry, bool, bool]]:
    """The list: each problem, whether it is held out, and whether it is searched over the whole space."""
    held = read_held_out()
    rng = random.Random(SEED)
    found = people(held, rng)
    found = _first([*found, *uniform(rng)], PEOPLE + UNIFORM)
    rest = ragged(rng)
    while len(found) < PEOPLE + UNIFORM + RAGGED:
        found = _first([*found, next(rest)], PEOPLE + UNIFORM + RAGGED)
    out = [one for one in found if held.has(one.problem)]
    assert len(out) <= HELD_OUT_MAX, len(out)
    others = [one for one in found if not held.has(one.problem)]
    searched = {*out, *rng.sample(others, SEARCHED - len(out))}
    return [(one, held.has(one.problem), one in searched) for one in found]


def _fits(problem: GemmProblem) -> bool:
    return problem.m * problem.n * problem.k <= LARGEST and problem.bytes < 2**33


def _first(entries: Iterable[Entry], count: int) -> list[Entry]:
    """The first entries of different problems."""
    return list({one.problem: one for one in reversed(list(entries))}.values())[::-1][:count]


def _order(entry: Entry) -> tuple[object, ...]:
    problem = entry.problem
    return entry.family, problem.m, problem.n, problem.k, problem.layouts


def map_file() -> str:
    """The text of map.toml."""
    lines = [
        f"# {PEOPLE + UNIFORM + RAGGED} problems drawn with seed {SEED}; written anew by python -m sweeps.shapes.map",
        'name = "map"',
        'question = "Which kernel is the fastest on a problem that nobody tuned, and is it ahead of the libraries?"',
        "problems = [",
    ]
    for entry, held, searched in drawn():
        one = entry.problem
        text = f"m = {one.m}, n = {one.n}, k = {one.k}"
        text += f', layouts = "{one.layouts}"' if one.layouts != "kk" else ""
        text += f', part = "{entry.part}"' + (f', family = "{entry.family}"' if entry.family else "")
        text += ", held_out = true" if held else ""
        text += ", search = true" if searched else ""
        lines.append(f"  {{ {text} }},")
    return "\n".join([*lines, "]", ""])


if __name__ == "__main__":
    print(map_file(), end="")
