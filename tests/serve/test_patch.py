"""A patched model is the same model: parameters, outputs, gradients; only its linear layers multiply elsewhere."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import replace

import pytest
import torch
import torch.distributed.tensor
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import hopper_gemm
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import Table
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import TunedEntry
from hopper_gemm.serve import patch as room
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.ops import linear_op
from hopper_gemm.serve.patch import HopperLinear
from tests.serve.test_odd_tensors import KnowsLinear


class Block(torch.nn.Module):
    """A transformer layer of 64 channels and 4 heads."""

    def __init__(self, dtype=torch.bfloat16) -> None:
        super().__init__()
        sizes = {"qkv": (64, 192), "out": (64, 64), "up": (64, 128), "down": (128, 64)}
        for name, (k, n) in sizes.items():
            setattr(self, name, torch.nn.Linear(k, n, bias=name in ("qkv", "down"), dtype=dtype))
        self.first, self.second = (torch.nn.LayerNorm(64, dtype=dtype) for _ in range(2))

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


def transformer(dtype=torch.bfloat16, layers=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block(dtype) for _ in range(layers)), torch.nn.Linear(64, 104, dtype=dtype))


def tokens(batch=2, length=12, dtype=torch.bfloat16):
    return torch.randn(batch, length, 64, dtype=dtype)


@pytest.fixture
def products(monkeypatch):
    """The products that patched layers ask for; the reference of the operators makes them."""
    made = []

    def linear(x, w, bias=None, residual=None, batch_invariant=None, out=None):
        made.append((*x.shape, len(w), batch_invariant, POLICY.fallback))
        found = linear_op(x, w, bias, None, residual, None, None if out is None else out.dtype)
        return found if out is None else out.copy_(found)

    monkeypatch.setattr(room, "linear", linear)
    return made


def near(one, other):
    return torch.allclose(one.float(), other.float(), atol=0.05, rtol=0.05)


def test_every_linear_layer_is_replaced_and_the_outputs_and_gradients_stay(products):
    model, x = transformer(), tokens()
    expected = model(x)
    expected.float().square().mean().backward()
    gradients = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    done = hopper_gemm.patch(model)
    assert [layer.replaced for layer in done.layers] == [True] * 9
    found = model(x)
    assert len(products) == 9
    assert products[:2] == [(2, 12, 64, 192, None, "faster"), (2, 12, 64, 64, None, "faster")]
    assert POLICY.fallback == "unsupported"
    assert near(found, expected)
    found.float().square().mean().backward()
    assert all(near(one.grad, other) for one, other in zip(model.parameters(), gradients, strict=True))


def test_the_objects_parameters_and_state_stay_and_undo_restores_the_class(products):
    model = transformer()
    before = {name: (id(module), type(module)) for name, module in model.named_modules()}
    parameters, state = [id(one) for one in model.parameters()], list(model.state_dict())
    hooked = []
    model[-1].register_forward_hook(lambda *call: hooked.append(1))
    done = hopper_gemm.patch(model)
    assert [id(one) for one in model.parameters()] == parameters
    assert list(model.state_dict()) == state
    assert {name: id(module) for name, module in model.named_modules()} == {
        name: at for name, (at, _) in before.items()
    }
    model(tokens())
    assert hooked == [1]
    model.load_state_dict(transformer().state_dict())
    done.undo()
    done.undo()
    assert {name: (id(module), type(module)) for name, module in model.named_modules()} == before
    made = len(products)
    model(tokens())
    assert len(products) == made


def test_a_copy_and_a_pickle_of_a_patched_model_stay_patched():
    model = transformer(layers=1)
    hopper_gemm.patch(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model[-1])).train()):
        assert isinstance(other[-1] if isinstance(other, torch.nn.Sequential) else other, HopperLinear)


def test_without_gradients_in_a_checkpoint_and_under_autocast_the_outputs_stay(products):
    model, x = transformer(), tokens()
    with torch.no_grad():
        expected = model(x)
        hopper_gemm.patch(model)
        assert near(model(x), expected)
    x.requires_grad_()
    checkpoint(model, x, use_reentrant=False).float().sum().backward()
    again = x.grad.clone()
    x.grad = None
    model(x).float().sum().backward()
    assert torch.equal(again, x.grad)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_model_of_fp32_multiplies_in_the_type_of_autocast(recorded):
    model, x = transformer(torch.float32, 1), tokens(dtype=torch.float32)
    with torch.set_grad_enabled(recorded), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        done = hopper_gemm.patch(model)
        assert {layer.why for layer in done.layers} == {
            "untuned: the model picks, hopper_gemm.warmup times; within torch.autocast"
        }
        apart = f"({len(done.layers)} of float32, only within torch.autocast)"
        assert str(done).startswith(f"{len(done.layers)} of {len(done.layers)} linear layers {apart} ")
        found = model(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert near(found, expected)
    if recorded:
        found.float().sum().backward()
        assert model[-1].weight.grad.dtype == torch.float32


def in_autocast(layer, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer(x)


@pytest.mark.parametrize("shape", [(64,), (24, 64), (2, 12, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_gradients_of_a_layer_of_fp32_are_those_of_torch_in_autocast(products, shape, bias):
    layer, x = torch.nn.Linear(64, 104, bias=bias), torch.randn(shape, requires_grad=True)
    incoming = torch.randn(*shape[:-1], 104)
    given = x, *layer.parameters()
    expected = torch.autograd.grad(in_autocast(layer, x), given, incoming.bfloat16())
    hopper_gemm.patch(layer)
    out = in_autocast(layer, x)
    assert (out.shape, out.dtype) == (incoming.shape, torch.bfloat16)
    for found, right in zip(torch.autograd.grad(out, given, incoming.bfloat16()), expected, strict=True):
        assert (found.shape, found.dtype) == (right.shape, right.dtype)
        assert near(found, right)


def test_a_gradient_of_a_layer_of_fp32_has_a_gradient_in_autocast(products):
    layer, x = torch.nn.Linear(64, 104), tokens(dtype=torch.float32).requires_grad_()

    def second():
        (first,) = torch.autograd.grad(in_autocast(layer, x).float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), layer.weight)[0]

    expected = second()
    hopper_gemm.patch(layer)
    found = second()
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_a_patched_model_compiles_whole_for_any_number_of_tokens():
    model = transformer(layers=1)
    done = hopper_gemm.patch(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for length in (4, 12, 33):
        x = tokens(length=length)
        assert near(compiled(x), model(x))
    done.undo()


def test_a_compiled_layer_is_one_operator_with_its_bias_or_without_one():
    def called(layer):
        targets = []

        def backend(graph, _):
            targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
            return graph.forward

        hopper_gemm.patch(layer)
        for rows in (4, 12, 33):
            torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)(tokens(rows))
        return targets

    for bias in (True, False):
        assert called(torch.nn.Linear(64, 104, bias=bias, dtype=torch.bfloat16)) == [linear_op]


def test_a_model_in_ddp_has_the_gradients_of_the_plain_one(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model, x = transformer(layers=1), tokens()
        model(x).float().sum().backward()
        expected = [one.grad.clone() for one in model.parameters()]
        model.zero_grad()
        hopper_gemm.patch(model)
        torch.nn.parallel.DistributedDataParallel(model)(x).float().sum().backward()
        assert all(near(one.grad, other) for one, other in zip(model.parameters(), expected, strict=True))
    finally:
        torch.distributed.destroy_process_group()


def test_a_call_falls_back_where_torch_was_faster_unless_nothing_may(products):
    model = transformer(layers=1)
    hopper_gemm.patch(model)
    for policy, asked in (("never", "never"), ("unsupported", "faster"), ("faster", "faster")):
        with hopper_gemm.fallback(policy):
            products.clear()
            model(tokens())
            assert POLICY.fallback == policy
        assert {made[-1] for made in products} == {asked}


# Which layers --------------------------------------------------------------------------------


class Own(torch.nn.Linear):
    """A linear layer that does more."""


def mixed():
    return torch.nn.ModuleDict(
        {
            "own": Own(64, 64, dtype=torch.bfloat16),
            "wide": torch.nn.Linear(64, 64, dtype=torch.float64),
            "odd": torch.nn.Linear(60, 64, dtype=torch.bfloat16),
            "plain": torch.nn.Linear(64, 64, dtype=torch.bfloat16),
        }
    )


def test_layers_that_cannot_or_need_not_be_replaced_are_named_with_the_reason(monkeypatch):
    model = mixed()
    done = hopper_gemm.patch(model)
    assert {layer.name: layer.replaced for layer in done.layers} == {
        "own": False,
        "wide": False,
        "odd": False,
        "plain": True,
    }
    text, weights = str(done), "weights are (n, k), out_features and in_features\n"
    start = "1 of 4 linear layers are replaced; torch multiplies on cpu, which is no Hopper GPU"
    assert text.startswith(f"{start}; {weights}")
    monkeypatch.setattr(room, "check_device", lambda device: None)
    assert str(done).startswith(f"1 of 4 linear layers multiply by hopper_gemm; {weights}")
    done.undo()
    assert str(done).startswith(f"1 of 4 linear layers were replaced, and are torch's again; {weights}")
    hopper_gemm.patch(model)
    assert "own    Own (64, 64) torch.bfloat16: left, a class of its own" in text
    assert "plain  Linear (64, 64) torch.bfloat16: replaced, untuned" in text
    assert "replaced before" in str(hopper_gemm.patch(model))


def test_batch_invariance_is_of_all_layers_or_of_none(products):
    model = mixed()
    with pytest.raises(ValueError, match=r"nothing was replaced: own .*: a class of its own; wide .*: only bfloat16"):
        hopper_gemm.patch(model, batch_invariant=True)
    assert not any(isinstance(module, HopperLinear) for module in model.modules())
    model = transformer(layers=1)
    done = hopper_gemm.patch(model, batch_invariant=True)
    model(tokens())
    assert all(layer.replaced for layer in done.layers)
    assert {made[-2] for made in products} == {True}
    with pytest.raises(ValueError, match="only bfloat16 and float16"):
        hopper_gemm.patch(transformer(torch.float32), batch_invariant=True)


def entry(m, speedup, context="isolated", n=104):
    about = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "0", "study": "s", "gpu": "NVIDIA H200"}
    config = resolve(GemmConfig(tile_m=64, tile_n=64))
    return TunedEntry(GemmProblem(m, n, 64), "burst", config, speedup, 1.0, 1.2, 0.001, context=context, **about)


@pytest.mark.parametrize(
    ("entries", "counts", "replaced", "why"),
    [
        ([entry(8, 0.9)], (), False, "0.900x torch.mm at m = 8"),
        ([entry(8, 0.9), entry(512, 1.21)], (), True, "1.044x torch.mm at m = 8, 512"),
        ([entry(8, 0.9), entry(512, 1.21)], (8,), False, "0.900x torch.mm at m = 8"),
        ([entry(8, 0.9)], (16,), True, "untuned"),
        ([entry(8, 0.9, "chained")], (), True, "untuned"),
        ([entry(8, 0.9, n=64)], (), True, "untuned"),
        ([replace(entry(8, 0.9), problem=GroupedProblem(8, 104, 64, groups=2))], (), True, "untuned"),
    ],
)
def test_a_layer_is_replaced_where_its_entries_say_that_it_pays(monkeypatch, entries, counts, replaced, why):
    monkeypatch.setattr(room, "tables_for", lambda device: (Table(tuple(entries)),))
    (layer,) = hopper_gemm.patch(torch.nn.Linear(64, 104, dtype=torch.bfloat16), tokens=counts).layers
    assert layer.replaced is replaced
    assert layer.why.startswith(why)


def test_an_entry_of_the_first_table_counts_where_several_have_the_problem(monkeypatch):
    monkeypatch.setattr(room, "tables_for", lambda device: (Table((entry(8, 1.1),)), Table((entry(8, 0.5),))))
    (layer,) = hopper_gemm.patch(torch.nn.Linear(64, 104, dtype=torch.bfloat16)).layers
    assert layer.why == "1.100x torch.mm at m = 8"


# Layers whose forward is not what runs --------------------------------------------------------


def with_forward(layer):
    layer.forward = functools.partial(type(layer).forward, layer)
    return layer


def with_weight(layer, weight):
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def plain(n=64, k=64, **how):
    return torch.nn.Linear(k, n, dtype=torch.bfloat16, **how)


def encoder(**how):
    about = {"batch_first": True, "dtype": torch.bfloat16, **how}
    return torch.nn.TransformerEncoderLayer(64, 4, 128, 0.0, **about).eval()


HIDDEN = {
    "a forward of its own": lambda: with_forward(plain()),
    "a class of its own": lambda: parametrize.register_parametrization(plain(), "weight", torch.nn.Identity()),
    "TorchScript compiled it": lambda: torch.jit.script(plain()),
    "its weight is a KnowsLinear": lambda: with_weight(
        plain(), torch.randn(64, 64).bfloat16().as_subclass(KnowsLinear)
    ),
    "no features": lambda: plain(0),
    "its MultiheadAttention reads the weight": lambda: torch.nn.MultiheadAttention(64, 4, dtype=torch.bfloat16),
    "the fast path of its TransformerEncoderLayer": encoder,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("why", [*HIDDEN, "its weight is a DTensor"])
def test_a_layer_whose_class_is_not_what_runs_is_left_alone_with_the_reason(why, one_process):
    """With batch_invariant that is an error that names the layer."""
    if why in HIDDEN:
        model = torch.nn.Sequential(HIDDEN[why](), plain())
    else:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        weight = torch.distributed.tensor.distribute_tensor(torch.zeros(64, 64).bfloat16(), mesh)
        model = torch.nn.Sequential(with_weight(plain(), weight), plain())
    classes = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ValueError, match=rf"nothing was replaced: 0.*: {why}"):
        hopper_gemm.patch(model, batch_invariant=True)
    assert {name: type(module) for name, module in model.named_modules()} == classes
    done = hopper_gemm.patch(model)
    assert [layer.name for layer in done.layers if layer.replaced] == ["1"]
    assert all(why in layer.why or "its MultiheadAttention" in layer.why for layer in done.layers[:-1])
    done.undo()
    assert {name: type(module) for name, module in model.named_modules()} == classes


def test_a_lazy_layer_is_left_alone_until_it_has_a_weight():
    layer = torch.nn.LazyLinear(64, dtype=torch.bfloat16)
    assert "class of its own" in hopper_gemm.patch(layer).layers[0].why
    layer(torch.zeros(2, 64, dtype=torch.bfloat16))
    assert hopper_gemm.patch(layer).layers[0].replaced


def test_an_encoder_layer_that_has_no_fast_path_or_trains_is_replaced():
    for layer in (encoder(batch_first=False), encoder(activation=torch.tanh), encoder().train()):
        replaced = {one.name for one in hopper_gemm.patch(layer).layers if one.replaced}
        assert replaced == {"linear1", "linear2"}
    with pytest.raises(ValueError, match=r"linear1 .*fast path"):
        hopper_gemm.patch(encoder().train(), batch_invariant=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_a_weight_that_a_hook_makes_is_multiplied(norm, products):
    layer, x = norm(plain()).eval(), tokens()
    expected = layer(x)
    done = hopper_gemm.patch(layer)
    assert near(layer(x), expected)
    assert len(products) == 1
    done.undo()
    assert type(layer) is torch.nn.Linear


def test_a_model_on_the_meta_device_is_replaced_and_calls_there_have_shapes():
    layer = plain(104, device="meta")
    hopper_gemm.patch(layer)
    with torch.no_grad():
        assert layer(torch.empty(3, 64, dtype=torch.bfloat16, device="meta")).shape == (3, 104)


# Undone ---------------------------------------------------------------------------------------


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("main_grad", [False, True])
def test_undo_keeps_a_parametrization_that_came_later(main_grad):
    layer = plain()
    done = hopper_gemm.patch(layer, main_grad=main_grad)
    parametrize.register_parametrization(layer, "weight", torch.nn.Tanh())
    expected = torch.nn.functional.linear(x := tokens(), layer.weight, layer.bias)
    done.undo()
    assert type(layer).__name__ == "ParametrizedLinear"
    assert not isinstance(layer, HopperLinear)
    assert torch.equal(layer(x), expected)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is torch.nn.Linear


def test_undo_keeps_what_fully_shard_made_of_a_layer(one_process):
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = torch.nn.Sequential(plain(), plain())
    done = hopper_gemm.patch(model)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    done.undo()
    for layer in model:
        assert isinstance(layer, FSDPModule)
        assert not isinstance(layer, HopperLinear)
        assert type(layer).__name__ == "FSDPLinear"
    assert type(model[0]) is type(model[1])


def test_undo_changes_nothing_that_another_patch_or_somebody_else_has_set():
    layer, own = plain(), plain()
    first = hopper_gemm.patch(torch.nn.Sequential(layer, own))
    own.__class__ = Own
    first.undo()
    assert type(own) is Own
    second = hopper_gemm.patch(layer)
    first.undo()
    assert isinstance(layer, HopperLinear)
    second.undo()
    assert type(layer) is torch.nn.Linear


# As torch.nn.functional.linear ----------------------------------------------------------------


def outcome(layer, x):
    """Type and sizes of a layer's output, or the class of its error."""
    try:
        out = layer(x)
    except Exception as error:
        return type(error)
    return out.dtype, out.shape


TYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool
INPUTS = {
    **{str(dtype): torch.ones(2, 64, dtype=dtype) for dtype in TYPES},
    "0-dim": torch.tensor(1.0, dtype=torch.bfloat16),
    "empty": torch.ones(0, 64, dtype=torch.bfloat16),
    "too long": torch.ones(2, 65, dtype=torch.bfloat16),
    "none": None,
    "list": [1.0] * 64,
    "sparse": torch.eye(64).bfloat16().to_sparse(),
}


@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("main_grad", [False, True])
def test_a_patched_layer_takes_and_refuses_what_torchs_does(x, main_grad):
    """In the same type or by the same class of error; of each type of weight and bias, within autocast and outside."""
    halves = torch.float16, torch.bfloat16
    for dtype in (*halves, torch.float32):
        for of_bias in (dtype, torch.float32):
            layer = torch.nn.Linear(64, 104, dtype=dtype)
            layer.bias = torch.nn.Parameter(layer.bias.detach().to(of_bias))
            patched = copy.deepcopy(layer)
            hopper_gemm.patch(patched, main_grad=main_grad)
            patched.weight.main_grad = torch.zeros(104, 64)
            for cast in (None, *halves):
                with torch.autocast("cpu", dtype=cast or torch.bfloat16, enabled=cast is not None):
                    assert outcome(patched, x) == outcome(layer, x), (dtype, of_bias, cast)


def test_gradients_of_a_model_of_fp16_with_bf16_inputs_in_autocast_are_those_of_torch():
    layer, x = torch.nn.Linear(64, 104, dtype=torch.float16), tokens().requires_grad_()
    for main_grad in (False, True):
        given = (x, layer.bias) if main_grad else (x, *layer.parameters())
        expected = torch.autograd.grad(in_autocast(layer, x).float().square().sum(), given)
        done = hopper_gemm.patch(layer, main_grad=main_grad)
        layer.weight.main_grad = torch.zeros(104, 64)
        found = torch.autograd.grad(in_autocast(layer, x).float().square().sum(), given)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert float((one - other).norm() / other.norm()) < 0.02
        done.undo()


def test_a_weight_that_knows_linear_alone_is_given_to_it():
    layer, x = plain(bias=False), tokens()
    hopper_gemm.patch(layer)
    weight = layer.weight.detach()
    with_weight(layer, weight.as_subclass(KnowsLinear))
    assert torch.equal(layer(x), torch.nn.functional.linear(x, weight))


def test_a_jagged_tensor_is_given_to_torch():
    layer = plain()
    x = torch.nested.nested_tensor([torch.ones(3, 64), torch.ones(5, 64)], layout=torch.jagged, dtype=torch.bfloat16)
    expected = layer(x)
    hopper_gemm.patch(layer)
    assert torch.equal(layer(x).values(), expected.values())


# Gradients of weights added up in fp32 --------------------------------------------------------


def accumulating(layers=1, **options):
    """A patched model whose weights have buffers, the buffers by name, and a copy that is not patched."""
    model = transformer(layers=layers)
    plain = copy.deepcopy(model)
    hopper_gemm.patch(model, main_grad=True, **options)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, HopperLinear)}
    for module in linear.values():
        module.weight.main_grad = torch.zeros_like(module.weight, dtype=torch.float32)
    return model, {name: module.weight.main_grad for name, module in linear.items()}, plain


def test_gradients_of_weights_are_added_up_in_fp32_and_others_stay():
    model, totals, plain = accumulating()
    for _ in range(3):
        x = tokens()
        for one in (model, plain):
            one(x).float().square().mean().backward()
    modules, plain = dict(model.named_modules()), dict(plain.named_modules())
    for name, total in totals.items():
        assert modules[name].weight.grad is None
        assert near(total / total.abs().max(), plain[name].weight.grad / total.abs().max())
        if modules[name].bias is not None:
            assert near(modules[name].bias.grad, plain[name].bias.grad)
    assert near(modules["0.first"].weight.grad, plain["0.first"].weight.grad), "what stands before the layers"


def test_no_step_of_such_a_sum_is_rounded_to_the_weights_type():
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    hopper_gemm.patch(layer, main_grad=True)
    exact = torch.full((104, 64), 1000.0, dtype=torch.double)
    layer.weight.main_grad = exact.float()
    for shape in ((2, 12, 64), (24, 64), (64,)):
        x, incoming = torch.randn(shape).bfloat16(), torch.randn(*shape[:-1], 104).bfloat16()
        layer.bias.grad = None
        layer(x).backward(incoming)
        assert near(layer.bias.grad, incoming.float().view(-1, 104).sum(0))
        exact += incoming.double().view(-1, 104).t() @ x.double().view(-1, 64)
    assert torch.allclose(layer.weight.main_grad.double(), exact, rtol=1e-6, atol=1e-6)


def test_the_sum_is_written_in_place_by_the_launch_that_multiplies(by_python):
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    hopper_gemm.patch(layer, main_grad=True)
    total = layer.weight.main_grad = torch.zeros(104, 64)
    for _ in range(2):
        layer(tokens()).float().sum().backward()
    problem, _, written = by_python.made[-1]
    assert by_python.names[-1] == "residual"
    assert written == total.data_ptr()
    assert (problem.dtype, problem.layouts) == ("bf16_fp32", "mn")


def test_a_checkpoint_adds_a_gradient_once_and_a_frozen_weight_none():
    model, totals, plain = accumulating()
    model[0].up.weight.requires_grad_(False)
    x = tokens().requires_grad_()
    checkpoint(model, x, use_reentrant=False).float().square().mean().backward()
    plain(x.detach()).float().square().mean().backward()
    wanted = dict(plain.named_modules())["0.qkv"].weight.grad
    assert near(totals["0.qkv"] / wanted.abs().max(), wanted / wanted.abs().max())
    assert not totals["0.up"].any()
    assert x.grad is not None


def test_within_autocast_and_without_gradients_such_a_layer_is_a_layer():
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    x = tokens(dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(x)
        hopper_gemm.patch(layer, main_grad=True)
        with torch.no_grad():
            assert near(layer(x), expected)
        layer.weight.main_grad = torch.zeros(104, 64)
        found = layer(x)
    assert near(found, expected)
    found.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert near(layer.weight.main_grad, torch.ones(104, 24) @ x.detach().bfloat16().float().view(-1, 64))


def test_a_layer_of_fp32_keeps_its_gradient():
    layer = torch.nn.Linear(64, 104)
    hopper_gemm.patch(layer, main_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(tokens(dtype=torch.float32)).float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("total", [None, torch.zeros(104, 64, dtype=torch.bfloat16), torch.zeros(64, 104)])
def test_a_buffer_that_does_not_fit_is_refused_in_one_line_before_the_forward_pass(total):
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    hopper_gemm.patch(layer, main_grad=True)
    layer.weight.main_grad = total
    with pytest.raises(
        ValueError, match=r"weight.main_grad must be \(104, 64\) torch.float32 but is .*; set it before"
    ):
        layer(tokens())


def test_torch_compile_leaves_such_a_layer_to_eager_code():
    layer, _ = torch.nn.Linear(64, 104, dtype=torch.bfloat16), torch._dynamo.reset()
    done = hopper_gemm.patch(layer, main_grad=True)
    layer.weight.main_grad = torch.zeros(104, 64)
    torch.compile(lambda x: layer(x.relu()).float().sum(), backend="eager")(tokens()).backward()
    assert layer.weight.main_grad.any()
    with pytest.raises(Exception, match="main_grad must be used in eager code"):
        torch.compile(lambda x: layer(x), fullgraph=True, backend="eager")(tokens())
    done.undo()
    assert type(layer) is torch.nn.Linear


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_such_layers_are_batch_invariant_where_asked(products, batch_invariant):
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    hopper_gemm.patch(layer, main_grad=True, batch_invariant=batch_invariant)
    layer.weight.main_grad = torch.zeros(104, 64)
    layer(tokens()).float().sum().backward()
    assert [made[-2] for made in products] == [batch_invariant] * 2
    assert isinstance(pickle.loads(pickle.dumps(layer)), HopperLinear)


def test_such_layers_that_were_asked_for_nothing_follow_the_thread(products):
    """Forward and, outside by then, backward."""
    layer = torch.nn.Linear(64, 104, dtype=torch.bfloat16)
    hopper_gemm.patch(layer, main_grad=True)
    layer.weight.main_grad = torch.zeros(104, 64)
    with hopper_gemm.batch_invariant():
        output = layer(tokens())
    output.float().sum().backward()
    assert [made[-2] for made in products] == [True] * 2
