"""Attention with heads in the forms in which people write it, as one layer with options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

T = torch.Tensor


@dataclass(frozen=True)
class Form:
    """How attention is written. Inside of the products a tensor is samples x heads x tokens x channels."""

    project: str = "unbind"  # a key of PROJECT
    product: str = "product"  # a key of PRODUCT
    join: str = "reshape"  # a key of JOIN
    with_heads: str = ""  # a key of QUERIES_AND_KEYS: what happens to queries and keys before they meet
    with_scores: str = ""  # a key of SCORES
    mask: str = ""  # a key of MASKS
    behind: str = ""  # a key of BEHIND: what happens to the weighted values

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if value != getattr(Form, name)}
        return f"Form({', '.join(f'{name}={value!r}' for name, value in options.items())})"


class Attention(nn.Module):
    """``heads`` of ``width`` (values may have another one), ``shared`` heads of queries to one of keys and values."""

    def __init__(
        self, channels: int, form: Form, heads: int = 2, width: int = 4, of_values: int | None = None, shared: int = 1,
        tokens: int = 5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.form, self.heads, self.width, self.shared, self.tokens = form, heads, width, shared, tokens
        self.of_values, self.groups = of_values or width, heads // shared
        _, layers = PROJECT[form.project]
        sizes = {"q": heads * width, "k": self.groups * width, "v": self.groups * self.of_values}
        for name in layers:
            if name != "x":
                self.add_module(name, nn.Linear(channels, sum(sizes[letter] for letter in name), bias=name != "k"))
        self.project, self.product = PROJECT[form.project][0], PRODUCT[form.product]
        self.out = nn.Linear(heads * self.of_values, channels)
        for name, shape in PARAMETERS.items():
            if name in (form.with_heads, form.with_scores, form.mask, form.behind):
                self.weight = nn.Parameter(torch.ones(shape(self)))
        if form.with_heads == "norms":
            self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))
        if form.with_scores == "talking":
            self.before, self.after = (nn.Linear(heads, heads) for _ in range(2))
        if form.behind == "gated":
            self.gate = nn.Linear(channels, heads * self.of_values)

    def forward(self, x: T, other: T | None = None) -> T:
        other = x if other is None else other
        q, k, v = self.project(self, x, other)
        q, k = QUERIES_AND_KEYS[self.form.with_heads](self, q, k)
        y = self.product(self, q, k, v)
        y = JOIN[self.form.join](BEHIND[self.form.behind](self, y, x), x)
        return self.out(y * torch.sigmoid(self.gate(x)) if self.form.behind == "gated" else y)

    def scale(self) -> float:
        return 0.7 / self.width**0.5

    def mask(self, q: T, k: T) -> T | None:
        return MASKS[self.form.mask](self, q, k)


# ------------------------------------------------------------ projections


def _unbind(m: Any, x: T, _: T) -> Any:
    """timm"""
    b, n, _c = x.shape
    return m.qkv(x).reshape(b, n, 3, m.heads, m.width).permute(2, 0, 3, 1, 4).unbind(0)


def _indexed(m: Any, x: T, _: T) -> Any:
    qkv = m.qkv(x).reshape(x.shape[0], x.shape[1], 3, m.heads, -1).permute(2, 0, 3, 1, 4)
    return qkv[0], qkv[1], qkv[2]


def _chunk(m: Any, x: T, _: T) -> Any:
    b, n, _c = x.shape
    return tuple(part.view(b, n, m.heads, m.width).transpose(1, 2) for part in m.qkv(x).chunk(3, dim=-1))


def _split(m: Any, x: T, _: T) -> Any:
    """Of unequal widths."""
    counts = [m.heads * m.width, m.groups * m.width, m.groups * m.of_values]
    parts = m.qkv(x).split(counts, dim=-1)
    heads = (m.heads, m.groups, m.groups)
    return _repeated(
        m, *(part.unflatten(-1, (count, -1)).transpose(1, 2) for part, count in zip(parts, heads, strict=True))
    )


def _slices(m: Any, x: T, _: T) -> Any:
    qkv, w = m.qkv(x), m.heads * m.width
    parts = qkv[..., :w], qkv[..., w : 2 * w], qkv[..., 2 * w :]
    return tuple(part.reshape(x.shape[0], -1, m.heads, m.width).permute(0, 2, 1, 3) for part in parts)


def _head_by_head(m: Any, x: T, _: T) -> Any:
    """All that belongs to one head side by side."""
    b, n, _c = x.shape
    return m.qkv(x).view(b, n, m.heads, 3 * m.width).transpose(1, 2).chunk(3, dim=-1)


def _innermost(m: Any, x: T, _: T) -> Any:
    """The three of each channel side by side."""
    b, n, _c = x.shape
    return m.qkv(x).reshape(b, n, m.heads, m.width, 3).permute(4, 0, 2, 1, 3).unbind(0)


def _heads_inside(m: Any, x: T, _: T) -> Any:
    """Of each channel all heads side by side."""
    b, n, _c = x.shape
    return tuple(part.reshape(b, n, m.width, m.heads).permute(0, 3, 1, 2) for part in m.qkv(x).chunk(3, -1))


def _apart(m: Any, x: T, other: T) -> Any:
    """transformers"""
    made = []
    for layer, given, count in ((m.q, x, m.heads), (m.k, other, m.groups), (m.v, other, m.groups)):
        made.append(layer(given).view(given.shape[0], given.shape[1], count, -1).transpose(1, 2))
    return _repeated(m, *made)


def _keys_and_values(m: Any, x: T, other: T) -> Any:
    b, n, _c = other.shape
    q = m.q(x).reshape(x.shape[0], x.shape[1], m.heads, m.width).permute(0, 2, 1, 3)
    k, v = m.kv(other).reshape(b, n, 2, m.groups, m.width).permute(2, 0, 3, 1, 4)
    return _repeated(m, q, k, v)


def _in_batch(m: Any, x: T, other: T) -> Any:
    """Heads among the samples, as fairseq has them."""
    made = []
    for layer, given in ((m.q, x), (m.k, other), (m.v, other)):
        b, n, _c = given.shape
        made.append(layer(given).view(b, n, m.heads, -1).transpose(1, 2).reshape(b * m.heads, n, -1))
    return made


def _one_head(m: Any, x: T, other: T) -> Any:
    return m.q(x), m.k(other), m.v(other)


def _own_input(m: Any, x: T, other: T) -> Any:
    """Values are the input itself."""
    return tuple(
        made.view(x.shape[0], -1, m.heads, m.width).transpose(1, 2) for made in (m.q(x), m.k(other), other)
    )


PROJECT: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "unbind": (_unbind, ("qkv",)),
    "indexed": (_indexed, ("qkv",)),
    "chunk": (_chunk, ("qkv",)),
    "split": (_split, ("qkv",)),
    "slices": (_slices, ("qkv",)),
    "head by head": (_head_by_head, ("qkv",)),
    "innermost": (_innermost, ("qkv",)),
    "heads inside": (_heads_inside, ("qkv",)),
    "apart": (_apart, ("q", "k", "v")),
    "keys and values": (_keys_and_values, ("q", "kv")),
    "in batch": (_in_batch, ("q", "k", "v")),
    "one head": (_one_head, ("q", "k", "v")),
    "values are the input": (_own_input, ("q", "k")),
}


def _repeated(m: Any, q: T, k: T, v: T) -> tuple[T, T, T]:
    if m.shared == 1 or m.form.product in ("grouped", "broadcast", "one for all"):
        return q, k, v
    if m.form.product == "sdpa":
        return q, k.repeat_interleave(m.shared, dim=1), v.repeat_interleave(m.shared, dim=1)
    b, heads, n, _ = k.shape
    return q, *(x[:, :, None].expand(b, heads, m.shared, n, -1).reshape(b, heads * m.shared, n, -1) for x in (k, v))


# ------------------------------------------------------------ queries and keys


def _turned(x: T) -> T:
    one, other = x.chunk(2, dim=-1)
    return torch.cat((-other, one), dim=-1)


def _rotary(m: Any, q: T, k: T) -> Any:
    def turn(x: T) -> T:
        steps = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)
        angles = steps[:, None] / (1 + torch.arange(m.width // 2, device=x.device, dtype=x.dtype))
        angles = torch.cat((angles, angles), -1)
        return x * angles.cos() + _turned(x) * angles.sin()

    return turn(q), turn(k)


QUERIES_AND_KEYS: dict[str, Callable[..., tuple[T, T]]] = {
    "": lambda m, q, k: (q, k),
    "norms": lambda m, q, k: (m.norms[0](q), m.norms[1](k)),
    "cosine": lambda m, q, k: (F.normalize(q, dim=-1) * m.weight.exp(), F.normalize(k, dim=-1)),
    "rotary": _rotary,
    "scale": lambda m, q, k: (q * m.weight, k),
    "shift": lambda m, q, k: (q + m.weight, k),
    "activation": lambda m, q, k: (F.relu(q), F.softplus(k)),
}


# ------------------------------------------------------------ products


def _by_hand(m: Any, q: T, k: T, v: T) -> T:
    scores = SCORES[m.form.with_scores](m, (q * m.scale()) @ k.transpose(-2, -1))
    mask = m.mask(q, k)
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(dim=-1)
    if m.form.with_scores == "talking":
        weights = m.after(weights.movedim(1, -1)).movedim(-1, 1)
    return weights @ v


def _values_first(m: Any, q: T, k: T, v: T) -> T:
    """Channels before tokens."""
    q, k, v = (x.transpose(-1, -2) for x in (q, k, v))
    scores = SCORES[m.form.with_scores](m, torch.matmul(q.transpose(-2, -1), k) * m.scale())
    mask = m.mask(q.transpose(-1, -2), k.transpose(-1, -2))
    scores = scores if mask is None else scores + mask.to(q.dtype)
    return torch.matmul(v, torch.softmax(scores, -1).transpose(-2, -1)).transpose(-2, -1)


def _sdpa(m: Any, q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask(q, k))


def _grouped(m: Any, q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask(q, k), scale=0.3, enable_gqa=True)


def _causal(m: Any, q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True)


def _einsum(m: Any, q: T, k: T, v: T) -> T:
    scores = SCORES[m.form.with_scores](m, torch.einsum("bhid,bhjd->bhij", q, k) * m.scale())
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def _one_for_all(m: Any, q: T, k: T, v: T) -> T:
    """All heads of queries read one head of keys and values."""
    scores = torch.einsum("bhid,bjd->bhij", q * m.scale(), k.squeeze(1))
    return torch.einsum("bhij,bjd->bhid", scores.softmax(-1), v.squeeze(1))


def _bmm(m: Any, q: T, k: T, v: T) -> T:
    return torch.bmm(torch.bmm(q * m.scale(), k.transpose(1, 2)).softmax(-1), v)


def _linear(m: Any, q: T, k: T, v: T) -> T:
    """Without softmax: keys and values meet first."""
    return q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)


def _between_channels(m: Any, q: T, k: T, v: T) -> T:
    """Channels attend to channels (XCiT)."""
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    return (scores.softmax(-1) @ v).transpose(-2, -1)


PRODUCT: dict[str, Callable[..., T]] = {
    "product": _by_hand,
    "values first": _values_first,
    "sdpa": _sdpa,
    "grouped": _grouped,
    "causal": _causal,
    "broadcast": _by_hand,
    "einsum": _einsum,
    "one for all": _one_for_all,
    "bmm": _bmm,
    "linear": _linear,
    "between channels": _between_channels,
}

SCORES: dict[str, Callable[..., T]] = {
    "": lambda m, scores: scores,
    "bias": lambda m, scores: scores + m.weight[: scores.shape[-2], : scores.shape[-1]].permute(2, 0, 1),
    "scale of scores": lambda m, scores: scores * m.weight,
    "talking": lambda m, scores: m.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
}

MASKS: dict[str, Callable[..., T | None]] = {
    "": lambda m, q, k: None,
    "lower": lambda m, q, k: torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(),
    "of heads": lambda m, q, k: m.weight[:, : q.shape[-2], : k.shape[-2]],
    "of samples": lambda m, q, k: (k.new_ones(k.shape[0], 1, 1, k.shape[-2])).cumsum(-1) * 0.1,
}

BEHIND: dict[str, Callable[..., T]] = {
    "": lambda m, y, x: y,
    "gated": lambda m, y, x: y,
    "scale of heads": lambda m, y, x: y * m.weight,
    "activation": lambda m, y, x: F.gelu(y),
}

JOIN: dict[str, Callable[..., T]] = {
    "reshape": lambda y, x: y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1),
    "flatten": lambda y, x: y.transpose(1, 2).flatten(2),
    "view": lambda y, x: y.permute(0, 2, 1, 3).contiguous().view(x.shape[0], x.shape[1], -1),
    "cat": lambda y, x: torch.cat(y.unbind(1), dim=-1),
    "in batch": lambda y, x: y.view(x.shape[0], -1, x.shape[1], y.shape[-1]).transpose(1, 2).flatten(2),
    "one head": lambda y, x: y,
}

PARAMETERS: dict[str, Callable[[Attention], tuple[int, ...]]] = {
    "cosine": lambda m: (m.heads, 1, 1),
    "scale": lambda m: (m.heads, 1, 1),
    "shift": lambda m: (m.heads, 1, m.width),
    "bias": lambda m: (m.tokens + 2, m.tokens + 2, m.heads),
    "scale of scores": lambda m: (1, m.heads, 1, 1),
    "of heads": lambda m: (m.heads, m.tokens + 2, m.tokens + 2),
    "scale of heads": lambda m: (m.heads, 1, m.of_values),
}
