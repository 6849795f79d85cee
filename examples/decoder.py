"""A decoder of the Llama family from the fields of a public config.json: RMSNorm, rotary positions, grouped attention,
SwiGLU. Weights are random; q, k and v are one linear layer, gate and up another, as servers stack them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class DecoderConfig:
    """Fields of a config.json, by their names there; ``attention_bias``: of q, k and v."""

    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    vocab_size: int = 128256
    rms_norm_eps: float = 1e-5
    rope_theta: float = 5e5
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @staticmethod
    def of(values: Mapping[str, Any]) -> DecoderConfig:
        """The config of a config.json; other fields are not read.

        Raises:
            ValueError: a family whose layers differ.
        """
        family = values.get("model_type", "llama")
        if family not in FAMILIES:
            raise ValueError(f"model_type must be one of {', '.join(FAMILIES)} but got {family!r}")
        known = {one.name for one in fields(DecoderConfig)}
        bias = {"attention_bias": family == "qwen2"}
        return DecoderConfig(**{**bias, **{name: value for name, value in values.items() if name in known}})

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


FAMILIES = ("llama", "mistral", "qwen2")

LLAMA_3_8B = DecoderConfig()

QWEN_2_5_1_5B = DecoderConfig.of(
    {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }
)

TINY = DecoderConfig(64, 96, 2, 4, 2, 128)
"""Small enough for a CPU."""


class Cache:
    """Keys and values of a layer: (batch, heads, length, head size) each, the first ``used`` positions filled."""

    def __init__(self, config: DecoderConfig, batch: int, length: int, like: torch.Tensor) -> None:
        sizes = batch, config.num_key_value_heads, length, config.head_size
        self.keys, self.values = like.new_zeros(sizes), like.new_zeros(sizes)
        self.used = 0

    def extended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values with these behind those before; ``used`` stays, so that a step can be timed again."""
        end = self.used + keys.shape[2]
        self.keys[:, :, self.used : end], self.values[:, :, self.used : end] = keys, values
        return self.keys[:, :, :end], self.values[:, :, :end]


def rotated(x: torch.Tensor, start: int, theta: float) -> torch.Tensor:
    """Rotary positions of x (batch, heads, tokens, head size), the first token at ``start``."""
    half = x.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float32)[:, None] * speeds
    left, right = x.float().split(half, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of q (batch, heads, tokens, head size) over keys and values of fewer heads; causal for many tokens."""
    causal = q.shape[2] > 1
    return functional.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)


class Layer(torch.nn.Module):
    """A layer; ``norm`` and ``attend`` may be replaced by other functions of the same arguments."""

    norm = staticmethod(functional.rms_norm)
    attend = staticmethod(attention)

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        heads = config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads
        self.shares = [count * config.head_size for count in heads]
        self.qkv = torch.nn.Linear(size, sum(self.shares), bias=config.attention_bias)
        self.out = torch.nn.Linear(self.shares[0], size, bias=False)
        self.gate_up = torch.nn.Linear(size, 2 * config.intermediate_size, bias=False)
        self.down = torch.nn.Linear(config.intermediate_size, size, bias=False)
        self.before, self.between = (torch.nn.Parameter(torch.ones(size)) for _ in range(2))

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        x = x + self.out(self.mixed(x, cache))
        gate, up = self.gate_up(self.normed(x, self.between)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The normalised input of a product."""
        return self.norm(x, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def mixed(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """The result of attention, heads side by side."""
        config, start = self.config, cache.used if cache else 0
        parts = self.qkv(self.normed(x, self.before)).split(self.shares, dim=-1)
        q, keys, values = (part.unflatten(-1, (-1, config.head_size)).transpose(1, 2) for part in parts)
        q, keys = (rotated(part, start, config.rope_theta) for part in (q, keys))
        if cache:
            keys, values = cache.extended(keys, values)
        return self.attend(q, keys, values).transpose(1, 2).flatten(-2)


class Decoder(torch.nn.Module):
    """Embedding, layers, norm and head: tokens (batch, length) give logits (batch, length, vocabulary)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.final = torch.nn.Parameter(torch.ones(config.hidden_size))
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for one in self.parameters():
            if one.dim() == 2:
                torch.nn.init.normal_(one, std=0.02)
        if config.tie_word_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, caches[number] if caches else None)
        return self.head(Layer.norm(x, (self.config.hidden_size,), self.final, self.config.rms_norm_eps))
