"""Multi-head attention of torch, written out as people write it themselves: projections, heads, products, projection.

As one call it would be an op that mixes all channels; written out, every projection is a layer with a name and heads
are an axis.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fxprune.trace.patches import Untraceable
from fxprune.trace.proxy import ShapeProxy, proxies

# Layers of torch that are made of others: their own code is traced, with that of attention replaced by what is below.
MADE_OF_LAYERS = (
    nn.Sequential, nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder,
    nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
)  # fmt: skip

NAMES = "q_proj", "k_proj", "v_proj", "out_proj"


def module_form(m: Any, path: str) -> Callable[..., Any]:
    """What ``m.forward`` computes, without torch's fast path."""

    def forward(
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        apart: dict[str, Any] = {}
        if m.in_proj_weight is None:
            apart = {f"{name}_weight": getattr(m, f"{name}_weight") for name in NAMES[:3]}
            apart["use_separate_proj_weight"] = True
        return function_form(
            query, key, value, m.embed_dim, m.num_heads, m.in_proj_weight, m.in_proj_bias, m.bias_k, m.bias_v,
            m.add_zero_attn, m.dropout, m.out_proj.weight, m.out_proj.bias, m.training, key_padding_mask, need_weights,
            attn_mask, average_attn_weights=average_attn_weights, is_causal=is_causal, batch_first=m.batch_first,
            path=path, **apart,
        )  # fmt: skip

    return forward


def function_form(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: Any = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    batch_first: bool = False,
    path: str | None = None,
) -> Any:
    """``F.multi_head_attention_forward``, with the same arguments; ``path`` is that of the module, if there is one."""
    if any(given is not None for given in (bias_k, bias_v, static_k, static_v)) or add_zero_attn:
        raise Untraceable("keys and values that no projection writes (add_bias_kv, add_zero_attn, static_k, static_v)")
    rank, width = query.value.ndim, embed_dim_to_check
    if rank not in (2, 3) or query.value.shape[-1] != width or width % num_heads or (is_causal and attn_mask is None):
        raise Untraceable("arguments that torch refuses")
    projected = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else _thirds(in_proj_weight)
    biases = (None,) * 3 if in_proj_bias is None else _thirds(in_proj_bias)
    heads = _Heads(num_heads, width // num_heads, rank, batch_first)
    split: list[Any] = []
    for tensor, weight, bias, name in zip((query, key, value), projected, biases, NAMES[:3], strict=True):
        split.append(heads.split(_named(F.linear(tensor, weight, bias), path, name), like=tensor))
    if is_causal and key_padding_mask is None and not need_weights:
        mask = None
    else:
        is_causal, mask = False, heads.mask(query, attn_mask, key_padding_mask)
    weights: Any = _weights(split, mask, dropout_p, training) if need_weights else None
    how: dict[str, Any] = {"is_causal": True} if is_causal else {}
    if mask is not None:
        how["attn_mask"] = mask.logical_not() if _value(mask).dtype == torch.bool else mask
    if dropout_p:
        how["dropout_p"] = training * dropout_p
    attended: Any = F.scaled_dot_product_attention(*split, **how)
    output = _named(F.linear(heads.joined(attended), out_proj_weight, out_proj_bias), path, NAMES[3])
    if weights is None:
        return output, None
    told = weights.mean(-3) if average_attn_weights else weights
    query.tracer.told_weights.append((told.node, weights.node, attended.node))
    return output, told


def without_unread_weights(graph: fx.Graph, told: fx.Node, weights: fx.Node, attended: fx.Node) -> None:
    """Attention weights are returned by default, but rarely read. If they are not read, one call of torch computes the
    result; if they are, the result and the weights share the same random draw."""
    if told.users:
        with graph.inserting_before(attended):
            product = graph.call_function(operator.matmul, (weights, attended.args[2]))
        product.meta = dict(attended.meta)
        attended.replace_all_uses_with(product)
        graph.erase_node(attended)
        return
    unread = [told]
    while unread:
        node = unread.pop()
        if not node.users and node.op != "placeholder":
            unread += node.all_input_nodes
            graph.erase_node(node)


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {F.multi_head_attention_forward: function_form}


def _thirds(packed: Any) -> tuple[Any, Any, Any]:
    width = packed.value.shape[0] // 3
    return packed[:width], packed[width : 2 * width], packed[2 * width :]


def _named(output: Any, path: str | None, name: str) -> Any:
    if path is not None:
        output.node.meta["layer"] = f"{path}.{name}".lstrip(".")
    return output


def _weights(split: list[Any], mask: Any, dropout_p: float, training: Any) -> Any:
    query, key, _ = split
    scores = (query * (1 / math.sqrt(query.value.shape[-1]))) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf) if _value(mask).dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout_p, training) if dropout_p else weights


class _Heads:
    """The order of tokens, samples and channels outside of the products; inside: (samples, heads, tokens, channels)."""

    def __init__(self, count: int, width: int, rank: int, batch_first: bool) -> None:
        self.sizes, self.rank = (count, width), rank
        inside = (1, 0, 2) if rank == 2 else (0, 2, 1, 3) if batch_first else (1, 2, 0, 3)
        self.inside, self.outside = inside, tuple(inside.index(axis) for axis in range(rank + 1))

    def split(self, x: Any, like: Any) -> Any:
        """Sizes are read off the input, which is there even if all heads are removed."""
        return x.view(*(like.size(axis) for axis in range(self.rank - 1)), *self.sizes).permute(*self.inside)

    def joined(self, x: Any) -> Any:
        return x.permute(*self.outside).flatten(-2)

    def mask(self, query: ShapeProxy, attention: Any, padding: Any) -> Any:
        """Both masks as one: bools say which positions to leave out, numbers are added to the scores."""
        given = [mask for mask in (attention, padding) if mask is not None]
        if not all(_value(mask).dtype == torch.bool or _value(mask).is_floating_point() for mask in given):
            raise Untraceable("a mask that is neither bool nor float")
        if any(_value(mask).dtype != torch.bool for mask in given):
            attention, padding = (None if mask is None else _added(mask, query) for mask in (attention, padding))
        if attention is not None and self.rank == 3 and _value(attention).ndim == 3:  # (samples x heads, ...)
            attention = attention.unflatten(0, (-1, self.sizes[0]))
        if padding is not None and self.rank == 3:
            padding = padding.unsqueeze(1).unsqueeze(1)
        if attention is None or padding is None:
            return padding if attention is None else attention
        return attention | padding if _value(attention).dtype == torch.bool else attention + padding


def _value(tensor: Any) -> torch.Tensor:
    """The tensor: a mask that does not depend on the input is no proxy."""
    plain: torch.Tensor = tensor.value if proxies(tensor) else tensor
    return plain


def _added(mask: Any, query: ShapeProxy) -> Any:
    """The mask as numbers in the dtype of the scores."""
    create = query.tracer.create_proxy
    if _value(mask).dtype != torch.bool:
        return mask if proxies(mask) else create("call_method", "to", (mask, query.dtype), {})
    return create("call_function", torch.zeros_like, (mask,), {"dtype": query.dtype}).masked_fill(mask, -math.inf)
