"""Activations that follow our operators, moved into the kernel's epilogue: a pass over the graphs of Inductor.

Before the pass, Inductor has decomposed an activation into elementwise operators, each release of torch in its own way.
The patterns are therefore traced, when folding starts, by the decompositions of this torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import Match, PatternMatcherPass, fwd_only, fx_to_pattern, register_graph_pattern
from torch.fx import Graph, Node

from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ACTIVATIONS
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
            z = torch.ones(8, 8, dtype=dtype, device="cpu")
            pattern = fx_to_pattern(fwd_only(partial(activated, activation=name), [z]), argnames=("z",))
            check, fold = partial(_foldable, dtype), partial(_fold, name)
            register_graph_pattern(pattern, extra_check=check, pass_dict=self.patterns)(fold)

    def __call__(self, graph: Graph) -> None:
        self.patterns.apply(graph)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


folding = cache(Folding)
"""The pass of this process, made when folding starts."""


def start() -> None:
    """Fold from the next compilation on; only warn if other passes hold every slot."""
    held = [getattr(config, slot) for slot in SLOTS]
    if folding() in held:
        return
    if None not in held:
        warnings.warn(
            f"activations are not folded: other passes hold {' and '.join(SLOTS)} of torch._inductor.config; "
            "free one and call hopper_gemm.inductor.enable() again",
            stacklevel=3,
        )
        return
    setattr(config, SLOTS[held.index(None)], folding())


def stop() -> None:
    """Stop folding; compiled graphs stay."""
    for slot in SLOTS:
        if isinstance(getattr(config, slot), Folding):
            setattr(config, slot, None)


def _product(z: Node, readers: Collection[Node]) -> Node | None:
    """Our operator whose result, or a view of it, an activation alone reads; None if there is none."""
    node = z.args[0] if z.target in VIEWS else z
    if not isinstance(node, Node) or node.target not in (mm, linear_op):
        return None
    alone = set(z.users) <= set(readers) and (node is z or set(node.users) == {z})
    return node if alone else None


def _call(node: Node) -> Any:
    """The call of a product or a layer; its tensors are nodes."""
    return call_of("mm" if node.target is mm else "linear", *node.args, **node.kwargs)


def _foldable(dtype: torch.dtype, match: Match) -> bool:
    """Return True if what an activation reads is a product of this type, and the kernel can finish it."""
    node = _product(match.kwargs["z"], match.nodes)
    if node is None or node.meta["val"].dtype != dtype:
        return False
    call, step = _call(node), hopper.TMA_ALIGN_BYTES // 2
    x, w = call.a.meta["val"], call.b.meta["val"]
    whole = all(isinstance(size, int) and size % step == 0 for size in w.shape)
    return whole and not call.activation and call.residual is None and able(x, w)


def _fold(activation: str, match: Match, z: Node) -> None:
    """Replace a match by our operator with the activation, where the product stood."""
    node = _product(z, match.nodes)
    assert node is not None
    call, graph = _call(node), match.graph
    w: Any = call.b
    with graph.inserting_before(node):
        if node.target is mm and w.target is aten.permute.default:  # a transpose of (n, k)
            w = w.args[0]
        elif node.target is mm:
            columns, w = w, graph.call_function(aten.permute.default, (w, [1, 0]))
            w.meta["val"] = columns.meta["val"].t()
        given = arguments_of("linear", call._replace(b=w, activation=activation))
        layer = graph.call_function(linear_op, given)
    layer.meta["val"] = node.meta["val"]
    layer.meta["eager_input_vals"] = torch.fx.node.map_arg(given, lambda node: node.meta["val"]), {}
    match.output_node().replace_all_uses_with(layer if node is z else z)
    match.erase_nodes()
    node.replace_all_uses_with(layer)
    graph.erase_node(node)
