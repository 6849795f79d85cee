"""The kernel's source as one config has it: what a config decides is decided, what it leaves out is gone.

The kernel is one parameterised source. For a reader who follows it config by config, :func:`source_of` evaluates the
conditions of the compilation (``cutlass.const_expr``), puts the config's values in place of their names, and drops
branches, loops without a round, the observer, annotations and docstrings; comments are lost. Put in the place of the
functions that it shows, the text compiles to the same machine code (:mod:`docs.generate.chapters.tree`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hopper_gemm
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.tune.parameters import all_values

PACKAGE = Path(hopper_gemm.__file__).parent
UNROLLED_BOXES = 4
"""As in kernel/operand.py: a stage of the ladder is one box for each slice."""

OBSERVER = "seen"
"""Name of the observer in the source."""

Simple = (bool, int, str, type(None))
"""Types of values that are written out."""


def source_of(kernel: Kernel) -> str:
    """The source of the roles of a kernel, function by function, in the order in which a tile meets them."""
    config = SimpleNamespace(**all_values(kernel))
    config.specialised = config.schedule != "multistage"
    config.cluster_size = config.cluster_m * config.cluster_n
    config.registers, config.share_m, config.share_n = kernel.registers, kernel.share_m, kernel.share_n
    parts: list[str] = []
    itself = SimpleNamespace(config=config, parts=1, dtype=SimpleNamespace(width=16), **_loop(config))
    known = {"self": itself, "config": config, "pingpong": config.schedule == "pingpong"}
    known |= {"held": 0, "stagger": config.stagger, "UNROLLED_BOXES": UNROLLED_BOXES, "registers": kernel.registers}
    for file, name in _functions(config):
        owner, method = name.split(".")
        absent = () if owner == "Fill" else ("turn", "first") if owner == "Mainloop" else ("turn",)
        code = _written(_function(file, owner, method), known | dict.fromkeys(absent))
        parts.append(f"# {owner} in {file}\n{code}")
    return "\n\n\n".join(parts) + "\n"


def _loop(config: SimpleNamespace) -> dict[str, Any]:
    """Constants of the loops and of the epilogue."""
    probes = {"producer": config.peek in (True, "producer"), "consumer": config.peek in (True, "consumer")}
    return {
        "stagger": config.stagger,
        "held": 0,
        "unroll": 1,
        "peeled": False,
        "order": None,
        "ahead": config.stages - 1 - config.stagger,
        "peek": any(probes.values()),
        "reverse": False,
        "tagged": False,
        "pace": None,
        "stages": config.stages,
        "readers": config.cluster_m + config.cluster_n - 1,
        "buffers": config.epi_buffers,
        "policy": None,
        "boxes": 1,
        "apart": False,
        "scattered": False,
    }


def _functions(config: SimpleNamespace) -> Iterable[tuple[str, str]]:
    """File and name of the functions that a config uses."""
    yield "kernel/pipeline.py", "Ring.init"
    if config.specialised:
        yield from (("kernel/gemm.py", f"HopperGemm.{name}") for name in ("_play", "_produce", "_fill"))
        yield "kernel/producer.py", "Fill.tile"
    else:
        loads = "load_first", "load_ahead", "_load"
        yield "lab/ladder/ladder_gemm.py", "LadderGemm._play"
        yield from (("lab/ladder/multistage.py", f"LoadingMainloop.{name}") for name in loads)
    yield "kernel/pipeline.py", "Ring.acquire"
    yield "kernel/operand.py", "Loads.issue"
    yield "kernel/pipeline.py", "Ring.expect"
    yield "kernel/operand.py", "OperandLoad._copy"
    yield "kernel/gemm.py", "HopperGemm._consume"
    yield from (("kernel/consumer.py", f"Mainloop.{name}") for name in ("multiply_tile", "multiply_stage"))
    yield from (("kernel/pipeline.py", f"Ring.{name}") for name in ("wait", "release"))
    if config.stores == "tma":
        own = (f"ConsumerEpilogue.{name}" for name in ("_store_chunk", "_stage", "sync"))
        yield from (("kernel/epilogue.py", name) for name in (*own, "TmaTarget.store"))
    else:
        yield "lab/ladder/threads/direct_store.py", "DirectEpilogue.store_tile"


@cache
def _module(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def _function(file: str, owner: str, method: str) -> ast.FunctionDef:
    """A copy of a method of a class."""
    for node in _module(file).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name == method:
                    copied = ast.parse(ast.unparse(one)).body[0]
                    assert isinstance(copied, ast.FunctionDef)
                    return copied
    raise LookupError(f"{file} has no {owner}.{method}")


def _written(function: ast.FunctionDef, known: Mapping[str, Any]) -> str:
    found = _Specialise(known).visit(function)
    found.decorator_list = []
    found.returns = None
    for one in (*found.args.args, *found.args.kwonlyargs):
        one.annotation = None
    found.args.args = [one for one in found.args.args if one.arg != OBSERVER]
    return ast.unparse(ast.fix_missing_locations(found))


class _Specialise(ast.NodeTransformer):
    """Evaluate what is known."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> Any:
        kept: Any = self._decided(node.test)
        if kept is None:
            self.generic_visit(node)
            return node if node.body else None
        return self._all(node.body if kept else node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        kept = self._decided(node.test)
        if kept is None:
            return self.generic_visit(node)
        return self.visit(node.body if kept else node.orelse)

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        empty = isinstance(node.iter, ast.Call) and [ast.unparse(one) for one in node.iter.args] == ["0"]
        return None if empty or not node.body else node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        return node if node.body else None

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        if isinstance(value, ast.Attribute | ast.Call) and _names(target) == [OBSERVER]:
            return None
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [(self.visit(a), self.visit(b)) for a, b in zip(target.elts, value.elts, strict=True)]
            kept = [(a, b) for a, b in pairs if _names(a) != [OBSERVER] and not self._is_written_out(a, b)]
            if len(kept) < len(pairs):
                names, values = ([*side] for side in zip(*kept, strict=True)) if kept else ([], [])
                node.targets = [names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())]
                node.value = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
                return node if kept else None
            node.targets, node.value = [ast.Tuple([a for a, _ in kept], ast.Store())], value
            value.elts = [b for _, b in kept]
            return node
        self.generic_visit(node)
        return None if self._is_written_out(node.targets[0], node.value) else node

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        self.generic_visit(node)
        left = [one for one in node.elts if _names(one) != [OBSERVER]]
        return left[0] if len(left) == 1 < len(node.elts) else ast.Tuple(left, node.ctx)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        node.args = [one for one in node.args if not ast.unparse(one).startswith(OBSERVER)]
        node.keywords = [one for one in node.keywords if _names(one.value) != [OBSERVER]]
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        text = ast.unparse(node)
        gone: tuple[str, ...] = ("self._await_launch", "self._fall_behind", f"{OBSERVER}.", "filling.seen", "self.put")
        if self.known["config"].specialised:
            gone = (*gone, "self.load_first", "self.load_ahead")
        if self.known["config"].stores == "direct":
            gone = (*gone, "self.epilogue.open", "epilogue.wait_reads")
        return None if text.startswith(gone) else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
            return self._constant(node)
        right = ast.unparse(node.right)
        zero = isinstance(node.op, ast.Add | ast.Sub) and right == "0"
        return node.left if zero or (isinstance(node.op, ast.Mult) and right == "1") else node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.And):
            node.values = [one for one in node.values if ast.unparse(one) != "True"] or [ast.Constant(True)]
        return node.values[0] if len(node.values) == 1 else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        return self._constant(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return self._constant(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Name(self, node: ast.Name) -> Any:
        return self._constant(node) if isinstance(node.ctx, ast.Load) else node

    def _all(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for one in body:
            made = self.visit(one)
            found += made if isinstance(made, list) else [made] if made is not None else []
        return found

    def _is_written_out(self, target: ast.expr, value: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id in self.known and isinstance(value, ast.Constant)

    def _decided(self, test: ast.expr) -> bool | None:
        """The value of a condition; None if the config does not decide it."""
        if isinstance(test, ast.Call) and ast.unparse(test.func) == "cutlass.const_expr":
            test = test.args[0]
        try:
            return bool(self._value(test))
        except Exception:  # whatever a name that is not known here raises
            return None

    def _constant(self, node: ast.expr) -> ast.expr:
        try:
            value = self._value(node)
        except Exception:
            if not isinstance(node, ast.BinOp):
                self.generic_visit(node)
            return node
        return ast.Constant(value) if isinstance(value, Simple) else node

    def _value(self, node: ast.expr) -> Any:
        code = compile(ast.Expression(ast.fix_missing_locations(node)), "", "eval")
        return eval(code, {"__builtins__": {}}, dict(self.known))


def _names(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else []
