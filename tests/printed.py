"""Commands as pages print them, and where each runs."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *sorted(ROOT.glob("docs/**/*.md"))]

TOOL = r"(?:hopper-gemm|make|python|pytest|pip|\.venv/bin/\S+|\.ci/\S+)"
LINE = re.compile(rf"^(?:    |\$ )({TOOL} [^`\n]+?)(?: {{2,}}#.*| &)?$", re.MULTILINE)
"""A command on a line of its own, or in a block with its output."""

SPAN = re.compile(rf"`({TOOL} [^`]+)`")
"""A command within a sentence, a heading or a table."""

NAMES = {f"hopper-gemm {name}" for name in ["counters", "explain", "pack", "report", "seal", "simulate", "tune"]}
"""Names of commands in sentences, which no reader types: they need an argument."""

FILLED = {
    r"\[M N K\]\.\.\.|\[M\] \[N\] \[K\]|\bM N K\b": "512 512 512",
    r"RESULTS_DIR|SPEC_OR_RESULTS": "DIR",
    r" \[SPEC\]": "",
    r"\bSPEC\.toml": "sweeps/seed-table.toml",
    r"sweeps/(archive/)?NAME\.toml": "sweeps/archive/options.toml",
    r"PATHS?\b": "DIR/provenance.json",
    r"--shapes FILE": "--shapes sweeps/shapes/suite.toml",
    r"--groups G\b": "--groups 8",
}
"""What stands for a placeholder, as patterns; DIR, FILE and OUT are names in a folder of the test."""

MEASURES = re.compile(
    r"hopper-gemm (check|compare|counters|map|trace|tune|warmup)\b(?!.*(replay|--record))|.*--gpus 0,1,2"
)
"""Commands that measure: without a Hopper GPU they end with exit code 3."""

ELSEWHERE = {
    r"make (test|lint|types|test-results|\.venv/\.ready)": ".ci/run",
    r"make (release|wheel|wheel-test|dsl-range|operators|vllm)|hopper-gemm prebuild --menu": "Makefile",
    r"\.ci/dsl-range .*": "tests/test_dsl_range.py",
    r"make (test-gpu|verify)|python -m tests\.verify.*": "tests/gpu",
    r"make verify-cpu": "tests/protocols",
    r"make docs": "tests/test_site.py",
    r"make data": "tests/docs/test_data.py",
    r"make notebooks": "tests/test_notebooks.py",
    r"make pages|hopper-gemm explain .* --gpu h200.*|hopper-gemm tune .* --backend replay.*": "tests/test_docs.py",
    r"make reports": "tests/test_site.py",
    r"make headline.*": "tests/test_headline.py",
    r"make sweep|hopper-gemm sweep sweeps/seed-table\.toml( --out .*)?": "tests/test_cli.py",
    r"hopper-gemm sweep sweeps/archive/options.toml --backend replay": "tests/test_printed.py",
    r"hopper-gemm simulate DIR": "tests/tune/search/test_simulate.py",
    r"make chapters|python -m docs\.generate\.chapters.*": "tests/docs/chapters",
    r"pip install .*|\.venv/bin/pip .*": ".ci/wheel",
    r"(\.venv/bin/)?pytest .*": "tests/test_docs.py",
    r"python examples/.*": "tests/examples",
    r"python -m tests\.test_surface": "tests/test_surface.py",
    r"python -m docs\.generate docs": "tests/test_docs.py",
    r"python -m benchmarks\.(fp8|groups|host).*": "docs/generate/headline.py",
    r"python -m benchmarks\.damages": "tests/test_damages.py",
    r"python -m benchmarks\.mutants": "tests/test_mutants.py",
    r"python -m benchmarks\.digests.*": "tests/test_digests.py",
    r"hopper-gemm (worker .*|sweep .* --cluster .*)": "tests/tune/run/test_cluster.py",
    r"hopper-gemm check --record-digests": "tests/lab/guard",
}
"""Where what a command does is run, of those that are not run as printed: pattern of the command, file or folder."""

BY_HAND = {
    r"python -m benchmarks\.(first|graphs|heuristics|ideas|invariant|live|rate|samplers|times).*": "a GPU or minutes",
    r"hopper-gemm simulate results/h200/space": "twenty minutes",
}
"""Commands that no test runs: pattern, and what they take."""

LISTED = (*ELSEWHERE, *BY_HAND)


def printed() -> list[str]:
    """Return the commands of all pages, each once, with their placeholders filled."""
    texts = [path.read_text() for path in PAGES]
    commands = {
        command.replace("\n", " ") for text in texts for pattern in (LINE, SPAN) for command in pattern.findall(text)
    }
    return sorted({filled(command) for command in commands - NAMES})


def filled(command: str) -> str:
    """Return a command with its placeholders filled."""
    for pattern, value in FILLED.items():
        command = re.sub(pattern, value, command)
    return command


def listed(command: str) -> bool:
    """Return True if the command is one of :data:`LISTED`, which are not run as printed."""
    return any(re.fullmatch(pattern, command) for pattern in LISTED)
