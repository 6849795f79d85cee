"""The examples run from end to end at tiny sizes on a CPU, where torch multiplies for both sides."""

from __future__ import annotations

import importlib
import json

import pytest
import torch

from hopper_gemm.serve import patch
from hopper_gemm.serve.ops import mm
from tests.conftest import ROOT


@pytest.fixture
def example(monkeypatch):
    """An example's module by name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module


@pytest.fixture
def row_by_row(monkeypatch):
    """Products of patched layers, each row alone: a row cannot depend on the others."""

    def matmul(a, b, batch_invariant=None, fallback=None):
        assert batch_invariant
        return torch.cat([mm(row[None], b) for row in a])

    monkeypatch.setattr(patch, "matmul", matmul)


def test_a_llama_layer_gives_the_same_patched(example, capsys):
    rows = example("llama_layer").main(["--tiny"])
    assert [(row["phase"], row["tokens"]) for row in rows] == [
        ("prefill", 8),
        ("prefill", 12),
        ("decode", 1),
        ("decode", 3),
    ]
    assert all(row["relative difference"] < 0.02 for row in rows)
    assert "4 of 4 linear layers multiply by hopper_gemm" in capsys.readouterr().out


def test_a_transformer_trains_alike_patched(example):
    rows = example("train").main(["--tiny", "--steps", "12"])
    assert rows[-1]["step"] == 11
    assert rows[-1]["ours"] < rows[0]["ours"], "the loss falls"
    assert all(abs(row["difference"]) < 0.02 for row in rows)


def test_a_model_of_a_public_config_gives_the_same_logits_patched(example, capsys, tmp_path):
    module = example("patched_model")
    rows = module.main(["--tiny"])
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


def test_a_decode_with_row_by_row_products_does_not_change_with_the_batch(example, row_by_row):
    """Norms and attention of the example add nothing of their own."""
    rows = example("invariant_decode").main(["--tiny", "--device", "cpu"])
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
