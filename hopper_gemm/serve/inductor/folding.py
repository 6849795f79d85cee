"""Activations that follow our operators, moved into the kernel's epilogue: a pass over the graphs of Inductor.

Before the pass, Inductor has decomposed an activation into elementwise operators, each release of torch in its own way.
The patterns are therefore traced, when folding starts, by the decompositions of this torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from itertools import product
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import (
    Match,
    PatternExpr,
    PatternMatcherPass,
    fwd_only,
    fx_to_pattern,
    register_graph_pattern,
)
from torch.fx import Graph, Node

from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.checks import DTYPES
from hopper_gemm.serve.inductor.products import able
from hopper_gemm.serve.ops import arguments_of, call_of, linear_op, mm
from hopper_gemm.serve.reference import activated

aten = torch.ops.aten

SLOTS = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")
"""Where Inductor's config takes a pass over a graph, after autograd and decompositions; the first free one is ours."""

VIEWS = (aten.reshape.default, aten.view.default)
"""What may stand between a product and its activation."""


class Folding(CustomGraphPass):
    """The pass; Inductor keeps compiled graphs apart by its ``uuid``."""

    def __init__(self) -> None:
        self.patterns = PatternMatcherPass()
        for name, dtype in product(ACTIVATIONS, (*DTYPES, torch.float32)):
            pattern = _pattern(name, dtype)
            register_graph_pattern(pattern, extra_check=_check_of(dtype), pass_dict=self.patterns)(_fold_of(name))

    def __call__(self, graph: Graph) -> None:
        self.patterns.apply(graph)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


_own: list[Folding] = []
"""The pass, once it was made."""


def start() -> None:
    """Fold from the next compilation on; only warn if other passes hold every slot."""
    if not _own:
        _own.append(Folding())
    held = [getattr(config, slot) for slot in SLOTS]
    if _own[0] in held:
        return
    if None not in held:
        warnings.warn(
            f"activations are not folded: other passes hold {' and '.join(SLOTS)} of torch._inductor.config; "
            "free one and call hopper_gemm.inductor.enable() again",
            stacklevel=3,
        )
        return
    setattr(config, SLOTS[held.index(None)], _own[0])


def stop() -> None:
    """Stop folding; compiled graphs stay."""
    for slot in SLOTS:
        if _own and getattr(config, slot) is _own[0]:
            setattr(config, slot, None)


def _pattern(activation: str, dtype: torch.dtype) -> PatternExpr:
    """What Inductor makes of an activation."""
    z = torch.ones(8, 8, dtype=dtype, device="cpu")
    return fx_to_pattern(fwd_only(lambda z: activated(z, activation), [z]), argnames=("z",))


def _product(z: Node, readers: Collection[Node]) -> Node | None:
    """Our operator whose result an activation reads, as it is or viewed in another shape; None if it is another's, or
    if anything beside the activation reads it."""
    node = z.args[0] if z.target in VIEWS else z
    if not isinstance(node, Node) or node.target not in (mm, linear_op):
        return None
    alone = set(z.users) <= set(readers) and (node is z or set(node.users) == {z})
    return node if alone else None


def _call(node: Node) -> Call:
    """The call of a product or a layer, whose tensors are nodes."""
    return call_of("mm" if node.target is mm else "linear", *node.args, **node.kwargs)


def _check_of(dtype: torch.dtype) -> Callable[[Match], bool]:
    """A check of a match: True if what an activation reads is a product of a type that our kernel gives, and can finish
    in the same launch."""

    def check(match: Match) -> bool:
        node = _product(match.kwargs["z"], match.nodes)
        if node is None or node.meta["val"].dtype != dtype:
            return False
        call, step = _call(node), hopper.TMA_ALIGN_BYTES // 2
        x, w = call.a.meta["val"], call.b.meta["val"]  # type: ignore[attr-defined]
        whole = all(isinstance(size, int) and size % step == 0 for size in w.shape)
        return whole and not call.activation and call.residual is None and able(x, w)

    return check


def _fold_of(activation: str) -> Callable[..., None]:
    """What replaces a match: our operator with the activation, where the product stood."""

    def fold(match: Match, z: Node) -> None:
        node = _product(z, match.nodes)
        assert node is not None
        call, graph = _call(node), match.graph
        with graph.inserting_before(node):
            w = _transposed(graph, call.b) if node.target is mm else call.b  # type: ignore[arg-type]
            given = arguments_of("linear", call._replace(b=w, activation=activation))  # type: ignore[arg-type]
            layer = graph.call_function(linear_op, given)
        layer.meta["val"] = node.meta["val"]
        layer.meta["eager_input_vals"] = torch.fx.node.map_arg(given, lambda node: node.meta["val"]), {}
        match.output_node().replace_all_uses_with(layer if node is z else z)
        match.erase_nodes()
        node.replace_all_uses_with(layer)
        graph.erase_node(node)

    return fold


def _transposed(graph: Graph, b: Node) -> Node:
    """A matrix (k, n) as (n, k): what it is a transpose of, where it is one."""
    if b.target is aten.permute.default:
        return b.args[0]  # type: ignore[return-value]
    turned = graph.call_function(aten.permute.default, (b, [1, 0]))
    turned.meta["val"] = b.meta["val"].t()
    return turned
