"""The examples run from end to end at tiny sizes on a CPU, where torch multiplies for both sides."""

from __future__ import annotations

import importlib
import json
import re
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import hopper_gemm
from hopper_gemm.serve import patch
from hopper_gemm.serve.ops import linear_op
from tests.conftest import ROOT


class Operators(TorchDispatchMode, list):
    """The names of the operators that run."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.append(function.name().partition(".")[0])
        return function(*args, **(kwargs or {}))


@pytest.fixture
def example(monkeypatch):
    """An example's module by name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module


@pytest.fixture
def row_by_row(monkeypatch):
    """Products of patched layers, each row alone: a row cannot depend on the others."""

    def linear(x, weight, bias, batch_invariant=None):
        assert batch_invariant
        rows = x.reshape(-1, x.shape[-1])
        return torch.cat([linear_op(row[None], weight, bias) for row in rows]).view(*x.shape[:-1], len(weight))

    monkeypatch.setattr(patch, "linear", linear)


@pytest.fixture
def llama(example):
    """The module of the layer; the tuned tables are as before in the end."""
    yield example("llama_layer")
    hopper_gemm.use_table(None)


def claims_no_speed(rows, text):
    """Return True if no time is compared: without a Hopper GPU torch multiplies on both sides."""
    columns = {column for row in rows for column in row} | set(re.findall(r"[a-z]+", text))
    told = "no Hopper GPU here: torch multiplies on both sides, and no times are compared" in text
    return told and not columns & {"speedup", "ms", "patched eager", "fused eager"}


def test_an_example_at_full_size_says_first_that_there_is_no_gpu(example, capsys, monkeypatch):
    """Torch multiplies then, for minutes; nobody waits for them without a word."""
    module = example("side_by_side")
    monkeypatch.setattr(module, "hopper", lambda: False)
    for tiny, lines in ((False, 1), (True, 0)):
        module.device_for(tiny)
        assert capsys.readouterr().err.count("no Hopper GPU here: torch multiplies at full size") == lines


def test_a_llama_layer_gives_the_same_patched_and_fused(llama, capsys):
    rows = llama.main(["--tiny"])
    assert [(row["phase"], row["tokens"]) for row in rows] == [
        ("prefill", 8),
        ("prefill", 12),
        ("decode", 1),
        ("decode", 3),
    ]
    assert all(row["relative difference"] < 0.02 for row in rows)
    text = capsys.readouterr().out
    assert "4 of 4 linear layers are replaced; torch multiplies on cpu" in text
    assert claims_no_speed(rows, text)


def test_a_fused_layer_is_one_launch_for_each_product_and_what_follows_it(llama, example):
    config = example("decoder").TINY
    torch.manual_seed(0)
    layer = llama.FusedLayer(config).to(torch.bfloat16)
    hopper_gemm.patch(layer)
    x = torch.randn(1, 8, config.hidden_size, dtype=torch.bfloat16)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake, Operators() as called:
        layer(fake.from_tensor(x))
    assert [name for name in called if name.startswith("hopper_gemm")] == [
        "hopper_gemm::linear",
        "hopper_gemm::linear",
        "hopper_gemm::swiglu",
        "hopper_gemm::linear",
    ]
    assert "aten::silu" not in called
    assert [str(finish) for _, finish in llama.products(layer, 8)] == ["None", "residual", "silu*up", "residual"]


def test_a_fused_layer_is_traced_whole(llama, example):
    """torch.compile then makes one kernel of each chain of operators between the products."""
    config = example("decoder").TINY
    torch.manual_seed(0)
    layer = llama.FusedLayer(config).to(torch.bfloat16)
    x = torch.randn(1, 8, config.hidden_size, dtype=torch.bfloat16)
    with torch.no_grad():
        found = torch.compile(layer, backend="eager", fullgraph=True)(x)
        assert torch.allclose(found.float(), layer(x).float(), atol=0.02)


def test_what_is_tuned_is_counted_and_left_aside_where_that_is_asked(llama, example, capsys, monkeypatch):
    with torch.device("meta"):
        layer = example("decoder").Layer(example("decoder").LLAMA_3_8B).to(torch.bfloat16)
    assert llama.picked(layer, 1) == "1 of 4"  # gate and up, which are one gated launch
    monkeypatch.setattr(llama, "hopper", lambda: True)
    rows = llama.main(["--tiny", "--picked"])
    assert llama.picked(layer, 1) == "4 of 4"
    assert {row["picked"] for row in rows} == {"4 of 4"}
    assert "over torch, all picked" in capsys.readouterr().out


def test_a_run_that_was_ended_goes_on_where_its_file_stops(llama, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda layer, **how: layer)
    monkeypatch.setattr(llama, "hopper", lambda: True)
    asked = ["--tiny", "--compile", "--out", str(tmp_path / "rows.jsonl")]
    first = llama.main([*asked, "--tokens", "8"])
    rows = llama.main([*asked, "--tokens", "8", "12", "--resume"])
    assert [row["tokens"] for row in rows] == [8, 12]
    assert rows[0] == first[0]
    assert {"compiled eager ms", "fused eager", "fused, compiled eager"} <= rows[1].keys()
    assert len(llama.main([*asked, "--resume", "--seconds", "0"])) == 2
    assert capsys.readouterr().err.count("prefill") == 2


def test_what_was_timed_is_kept_when_a_run_breaks_off(llama, tmp_path, monkeypatch):
    timed, asked = llama.timed, ["--tiny", "--tokens", "8", "12", "--out", str(tmp_path / "rows.jsonl")]

    def breaks_off(ways, device, seen=[]):  # noqa: B006
        seen.append(ways)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return timed(ways, device)

    monkeypatch.setattr(llama, "timed", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        llama.main(asked)
    again = []
    monkeypatch.setattr(llama, "timed", lambda ways, device: again.append(ways) or timed(ways, device))
    rows = llama.main([*asked, "--resume"])
    assert ([row["tokens"] for row in rows], len(again)) == ([8, 12], 1)


def test_the_compiler_has_our_products_to_choose_from_while_it_compiles_and_no_longer(llama, example, monkeypatch):
    told, config = [], example("decoder").TINY
    monkeypatch.setattr(llama, "hopper", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda layer, **how: lambda *given: (told.append("layer"), layer(*given))[1])
    for name in ("enable", "disable"):
        monkeypatch.setattr(hopper_gemm.inductor, name, partial(told.append, name))
    layer = example("decoder").Layer(config)
    chosen, x = llama.Chosen(layer), torch.randn(1, 4, config.hidden_size)
    assert torch.equal(chosen(x), layer(x))
    chosen(x)
    assert told == ["enable", "layer", "disable", "layer"]


def test_a_transformer_trains_alike_patched(example, capsys):
    rows = example("train").main(["--tiny", "--steps", "12"])
    assert claims_no_speed(rows, capsys.readouterr().out)
    assert rows[-1]["step"] == 11
    assert rows[-1]["ours"] < rows[0]["ours"], "the loss falls"
    assert all(abs(row["difference"]) < 0.02 for row in rows)


def test_a_model_of_a_public_config_gives_the_same_logits_patched(example, capsys, tmp_path):
    module = example("patched_model")
    rows = module.main(["--tiny"])
    assert claims_no_speed(rows, capsys.readouterr().out)
    assert [row["phase"] for row in rows] == ["prefill 12", "decode 3"]
    assert all(row["ours from fp32"] < min(0.05, 1.5 * row["torch from fp32"]) for row in rows)
    values = {"model_type": "mistral", **vars(example("decoder").TINY), "vocab_size": 96, "sliding_window": None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    module.main(["--tiny", "--config", str(tmp_path / "config.json")])
    assert "Linear (96, 64) torch.bfloat16: replaced" in capsys.readouterr().out
    with pytest.raises(ValueError, match="model_type must be one of llama, mistral, qwen2 but got 'gemma'"):
        example("decoder").DecoderConfig.of({"model_type": "gemma"})


def test_the_public_sizes_are_those_of_their_models(example):
    decoder = example("decoder")
    assert decoder.LLAMA_3_8B.head_size == decoder.QWEN_2_5_1_5B.head_size == 128
    assert decoder.QWEN_2_5_1_5B.attention_bias
    with torch.device("meta"):
        count = sum(one.numel() for one in decoder.Decoder(decoder.LLAMA_3_8B).parameters())
    assert count == 8_030_261_248


def test_a_decode_with_row_by_row_products_does_not_change_with_the_batch(example, row_by_row, monkeypatch):
    """Norms and attention of the example add nothing of their own."""
    monkeypatch.setattr(example("invariant_decode"), "hopper", lambda: True)
    rows = example("invariant_decode").main(["--tiny"])
    assert [row["logits changed"] for row in rows if row["products"] == "ours"] == [0, 0]


def test_sums_norms_and_attention_of_fixed_order_are_right(example):
    module, decoder = example("invariant_decode"), example("decoder")
    x, weight = torch.randn(3, 7, 11), torch.randn(11)
    for axis in range(3):
        assert torch.allclose(module.tree_sum(x, axis), x.sum(axis), atol=1e-5)
    assert torch.allclose(
        module.fixed_norm(x, (11,), weight, 1e-5), torch.nn.functional.rms_norm(x, (11,), weight, 1e-5), atol=1e-5
    )
    q, keys, values = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    assert torch.allclose(module.fixed_attention(q, keys, values), decoder.attention(q, keys, values), atol=1e-5)


def test_a_step_with_a_cache_gives_the_logits_of_the_whole_sequence(example):
    decoder, module = example("decoder"), example("invariant_decode")
    torch.manual_seed(0)
    model = decoder.Decoder(decoder.TINY).float()
    tokens = torch.randint(decoder.TINY.vocab_size, (2, 6))
    with torch.no_grad():
        assert torch.allclose(module.decoded(model, tokens), model(tokens), atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="torch has no grouped_mm")
def test_experts_give_torch_s_output_and_gradients_and_claim_no_speed_where_there_is_no_gpu(example, capsys):
    rows = example("experts").main(["--tiny"])
    assert [(row["tokens"], row["pass"]) for row in rows][::2] == [(8, "forward"), (48, "forward")]
    assert all(row["relative difference"] < 0.02 for row in rows)
    assert {*rows[0]} == {"tokens", "pass", "relative difference"}
    assert "no times are compared" in capsys.readouterr().out


def test_experts_are_one_launch_for_gate_and_up_and_one_for_down(example):
    experts = example("experts")
    layer = experts.Experts(experts.TINY, experts.gated_by_ours, hopper_gemm.grouped_mm).to(torch.bfloat16)
    x = torch.randn(8, experts.TINY.hidden, dtype=torch.bfloat16)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake, Operators() as called:
        layer(fake.from_tensor(x))
    assert [name for name in called if name.startswith("hopper_gemm")] == ["hopper_gemm::grouped_mm"] * 2
    assert "aten::silu" not in called
