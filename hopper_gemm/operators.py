"""Our kernel as a provider of CUTLASS Operators (the package ``nvidia-cutlass-operators``, extra ``operators``).

To import this module registers the provider ``hopper_gemm``; nothing else imports it. For arguments on sm_90a
``cutlass.operators.get_operators`` then finds what :func:`hopper_gemm.matmul` would run and the model's next choices,
each an operator that holds to one config; without arguments it finds none. An artifact serves all sizes that its
operator supports. docs/works-with lists what arguments may carry; FP8 sums are promoted to fp32 each 128 of k. The
search leaves out the rest; ``supports`` gives the reason in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.operators as library
import torch
from cutlass.operators import metadata as schema
from cutlass.operators.utils.tensor import normalized_major_stride

from hopper_gemm.compiler import compile
from hopper_gemm.compiler.loader import LoadedKernel, compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore, default_store
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import Kernel
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import BLOCK, GemmProblem
from hopper_gemm.serve.kernels import MODE, chip_of, kernel_for, pick_for

CANDIDATES = 4
"""Operators of one search, the config that ``matmul`` would run first."""

TARGET = library.TargetSm("90a")

TYPES = {dtype: name for name, dtype in compile.TYPES.items() if name != "int32"}
ACTIVATIONS = {"Gelu": "gelu", "SiLU": "silu", "ReLU": "relu"}
"""Names of ``cutlass.operators.fusion.library.ActivationOp`` with ours; its Gelu is the exact one."""


@library.register_provider("hopper_gemm")
class HopperProvider(library.Provider):
    """The operators of this package."""


@dataclass(kw_only=True)
class HopperDesign(schema.BLASDesignMetadata):
    """What shapes an operator's machine code: config, finish, and what groups are (``dense`` without any)."""

    config: Kernel
    finish: Epilogue | None
    grouping: str


def steps_of(args: Any) -> dict[str, Any]:
    """Fields of the finish that an epilogue is, each step that loads something with the name of what it loads; a
    ValueError where it is another epilogue, or the kernel cannot read an operand."""
    if args.epilogue is None:
        return {}
    graph, tensors, steps = args.epilogue.traced_epilogue.dag_ir, args.epilogue.tensors, dict[str, Any]()
    metas = {meta.name: meta for meta in graph.node_metas_topological_order()}
    if [name for name, meta in metas.items() if meta.op == "store"] != ["D"] or args.epilogue.transports:
        raise ValueError("an epilogue must return D alone and name no transports")
    wide = cutlass.Float16 if args.out.dtype == cutlass.Float16 else cutlass.BFloat16
    (node,), of_bias = graph.get_all_inputs("D"), args.A.dtype if args.A.dtype.width > 8 else wide
    for step, function, strides, dtype in (  # from the output back; strides of (batch, m, n)
        ("residual", "Plus", (True, True), args.out.dtype),
        ("activation", "", (), None),
        ("bias", "Plus", (False, True), of_bias),
        ("scale", "Multiplies", (False, False), None),
    ):
        called, sources = getattr(getattr(metas[node], "fn", None), "name", ""), graph.get_all_inputs(node)
        if step == "activation" and called in ACTIVATIONS:
            steps[step], (node,) = ACTIVATIONS[called], sources
        for name, before in (sources, sources[::-1]) if called == function and len(sources) == 2 else ():
            if name in tensors and tuple(map(bool, metas[name].tensor.stride[-2:])) == strides:
                steps[step], node, given = name, before, tensors[name]
                fits = isinstance(given, float | int) if dtype is None else given.dtype == dtype
                if fits and dtype is not None:
                    pitches = [apart * dtype.width // 8 for apart in given.stride[:-1]]
                    fits = given.stride[-1] == 1 and not any(size % 16 for size in (given.data_ptr, *pitches))
                if not fits:
                    raise ValueError(f"{step} must be {dtype or 'a number'}, with rows from multiples of 16 bytes on")
                break
    if node != "accum" or tensors["D"].data_ptr != args.out.data_ptr:
        raise ValueError("an epilogue must be D = activation(accum * alpha + bias) + C, and D be out")
    return steps


def scales_of(args: Any) -> str:
    """The scales of operands, as a finish names them; a ValueError where the kernel has no such scales."""
    sides, rows = (args.A, args.B), (args.A.shape[-2], args.B.shape[-1])
    scaled, mode = [isinstance(side, library.ScaledOperand) for side in sides], (1, 1, args.A.shape[-1])
    if not any(scaled) and args.A.dtype.width > 8:
        return ""
    for side, size in zip(sides, rows, strict=True):
        fits = all(scaled) and library.ScaleMode.compare(side.mode, mode) and side.scale.dtype == cutlass.Float32
        if not fits or side.swizzle != library.ScaleSwizzleMode.SwizzleNone or side.scale.numel() != size:
            raise ValueError(
                "FP8 must have an fp32 scale for each row of A and column of B: mode (1, 1, k), no swizzle"
            )
    return "row"


def problem_of(args: Any) -> tuple[GemmProblem, Epilogue | None]:
    """The problem of arguments, and what follows the product; a ValueError where the kernel cannot run it."""
    axis, (*batch, m, k), n = getattr(args, "offsets_along", None), args.A.shape, args.B.shape[-1]
    along = [normalized_major_stride(side.shape[-2:], side.stride[-2:]) for side in (args.A, args.B, args.out)]
    operand, out = TYPES.get(args.A.dtype), TYPES.get(args.out.dtype)
    if None in along or along[2] != (0, 1) or axis == "n":
        raise ValueError("A and B must be contiguous along an axis and out along n, and groups lie along m or k")
    if args.A.dtype != args.B.dtype or None in (operand, out) or args.accumulator_type != cutlass.Float32:
        raise ValueError(f"A, B and out must be of {', '.join(TYPES.values())}, A as B, with sums of fp32")
    layouts = ("k" if along[0] == (0, 1) else "m") + ("k" if along[1] == (1, 0) else "n")
    dtype, scales = f"{operand}" if operand == out else f"{operand}_{out}", scales_of(args)
    steps: dict[str, Any] = {step: step != "activation" or name for step, name in steps_of(args).items()}
    finish = Epilogue(**steps, scales=scales)
    problem: GemmProblem
    if axis is not None:
        if layouts[0] != "k" if axis == "m" else layouts != "mn":
            raise ValueError("groups along m must have A along k; along k, A along m and B along n")
        grouping = "rows" if axis == "m" else "depth"
        problem = GroupedProblem(m, n, k, dtype, layouts, groups=args.offsets.shape[0], grouping=grouping)
    elif batch and batch[0] > 1:
        problem = GroupedProblem(batch[0] * m, n, k, dtype, layouts, groups=batch[0], grouping="batch")
    else:
        problem = GemmProblem(m, n, k, dtype, layouts, MODE.batch_invariant, BLOCK if scales else 0)
    if str(finish) and isinstance(problem, GroupedProblem):
        raise ValueError("epilogue and scales must be None for a batch or groups")
    if problem.out_of_reach or 0 in (args.A.stride[0], args.B.stride[0]):
        raise ValueError("rows and matrices must start at multiples of 16 bytes, apart; fill n and k up to 16 bytes")
    return problem, finish if str(finish) else None


def constraints(side: Any) -> Any:
    """What an operand must be to be read as a given one is: of its type, along its axis."""
    if isinstance(side, library.ScaledOperand):
        scale = schema.DenseTensorConstraints(cutlass.Float32, None, 1, 4)
        return schema.ScaledOperandConstraints(constraints(side.quantized), scale, side.mode, side.swizzle)
    along = normalized_major_stride(side.shape[-2:], side.stride[-2:])
    return schema.DenseTensorConstraints(side.dtype, (0, *along), 128 // side.dtype.width)


class HopperLaunch:
    """What the operators of all arguments share."""

    metadata: Any

    def _supports(self, args: Any, target_sm: Any = None) -> Any:
        """Refuse what needs other machine code, and what the rules refuse of the config."""
        design = self.metadata.design
        try:
            problem, finish = problem_of(args)
        except ValueError as error:
            return library.Status.fail(error)
        if (finish, getattr(problem, "grouping", "dense")) != (design.finish, design.grouping):
            return library.Status.fail("arguments must have the epilogue and groups of the search; search again")
        refused = reasons(design.config, problem, finish)
        return library.Status.fail("; ".join(map(str, refused))) if refused else library.Status.success()

    def _compile(self, args: Any, target_sm: Any = None) -> Any:
        """Load the kernel for the device of the arguments; of tensors elsewhere compile it into the store."""
        (problem, _), design, tensor = problem_of(args), self.metadata.design, args.A.tensor._runtime_tensor
        if tensor is None or not tensor.is_cuda:
            kernel = KernelId.of(design.config, problem, "", design.finish, False)
            compile_into(KernelStore(default_store()), kernel)
            return library.CompiledArtifact(None, self, TARGET)
        return library.CompiledArtifact(self._loaded(problem, tensor.get_device()), self, TARGET)

    def _loaded(self, problem: GemmProblem, device: int) -> LoadedKernel:
        design = self.metadata.design
        with torch.cuda.device(device):
            return kernel_for(problem, device, design.config, design.finish, False)

    def _run(self, args: Any, compiled_artifact: Any, stream: Any, workspace: Any = None) -> None:
        """Launch on a stream. A kernel that needs a workspace takes this package's of that stream."""
        a, b, out = (side.tensor.runtime_tensor for side in (args.A, args.B, args.out))
        if a.dim() == 3 and a.shape[0] == 1:
            a, b, out = a[0], b[0], out[0]
        named: dict[str, Any] = {}
        if isinstance(args.A, library.ScaledOperand):
            named["scales"] = tuple(side.scale.tensor.runtime_tensor.reshape(-1) for side in (args.A, args.B))
        if hasattr(args, "offsets_along"):
            named["ends"] = args.offsets.tensor.runtime_tensor
        added: tuple[Any, ...] = ()
        if steps := steps_of(args):
            read = {step: args.epilogue.tensors.get(steps.get(step)) for step in ("bias", "residual")}
            shapes = {"bias": (-1,), "residual": out.shape}
            bias, residual = (given and given.runtime_tensor.view(shapes[step]) for step, given in read.items())
            added = bias, residual, args.epilogue.tensors.get(steps.get("scale"))
        device = a.get_device()
        kernel = compiled_artifact.compiled_obj or self._loaded(problem_of(args)[0], device)
        with torch.cuda.device(device), torch.cuda.stream(stream_of(stream, device)):
            kernel(a, b.mT, out, *added, **named)

    @classmethod
    def _generate_operators(
        cls, metadata_filter: Any, epilogue_args: Any = None, target_sm: Any = None, args: Any = None
    ) -> list[Any]:
        """Operators for arguments, what ``matmul`` would run first; none where the kernel cannot run them."""
        try:
            problem, finish = problem_of(args)
        except (AttributeError, ValueError):  # without arguments there is no problem to choose a config for
            return []
        sides, made = [constraints(side) for side in (args.A, args.B, args.out)], []
        operands: Any = schema.GemmOperandsMetadata(*sides, cutlass.Float32)
        if hasattr(args, "offsets_along"):
            ends = schema.DenseTensorConstraints(cutlass.Int32, (1,), 1, 4)
            operands = schema.IndexPtrGroupedGemmOperandsMetadata(*sides, ends, args.offsets_along, cutlass.Float32)
        epilogue = None if epilogue_args is None else schema.EpilogueMetadata.from_args(epilogue_args)
        configs = [pick_for(problem, 0, finish).config, *choices(problem, CANDIDATES, chip_of(), finish)]
        for config in list(dict.fromkeys(configs))[:CANDIDATES]:
            turn = -1 if config.swap_ab else 1  # tile and cluster as of C
            design = HopperDesign(
                mma_instruction_type=library.mma.HopperWgmma,
                tile_shape=(*(config.tile_m, config.tile_n)[::turn], config.tile_k * 16 // args.A.dtype.width),
                cluster_shape=(*(config.cluster_m, config.cluster_n)[::turn], 1),
                num_smem_stages=config.stages,
                config=config,
                finish=finish,
                grouping=getattr(problem, "grouping", "dense"),
            )
            label = f"{problem.layouts}_{problem.dtype}_{design.grouping}_{config}_{finish or 'product'}"
            name = f"hopper_gemm.{label}".replace(" ", "_")
            metadata = library.OperatorMetadata(name, cls, [TARGET], operands, design, epilogue)
            made += [cls(metadata)] if metadata_filter(metadata) else []  # type: ignore[call-arg]
        return made


def stream_of(stream: Any, device: int) -> Any:
    """The stream of torch's to make current; None where it is."""
    handle = int(getattr(stream, "cuda_stream", stream))
    if device < 0 or handle == torch.cuda.current_stream(device).cuda_stream:
        return None
    return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)


@HopperProvider.register
class HopperProduct(HopperLaunch, library.Operator):
    """Products, batches and FP8."""

    supported_args_type = library.GemmArguments
    designed_for_min_cc = 90


@HopperProvider.register
class HopperGroups(HopperLaunch, library.Operator):
    """Products of groups that end at offsets on the device."""

    supported_args_type = library.IndexPtrGroupedGemmArguments
    designed_for_min_cc = 90
