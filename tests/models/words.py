"""Nets that read words: embedding tables that write streams of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import SCALES
from tests.models.case import net

WORDS = ((1, 4), (3, 9))  # other numbers of samples and words


def words(x: torch.Tensor, count: int = 11) -> torch.Tensor:
    """Of numbers, which is what nets of the zoo are given."""
    return (x.abs() * 100).long() % count


@net((2, 6), others=WORDS, gates={
    "layer.self_attn.q_proj": "queries 4", "layer.self_attn.k_proj": "keys",
    "layer.self_attn.v_proj": "heads 2, values 4", "layer.self_attn.out_proj": 8,
})  # fmt: skip
class reads_words(nn.Module):
    """Words and their places, an encoder layer, an answer per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(12, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        y = self.words(words(x)) + self.places(places)
        return self.head(self.norm(self.layer(y)).mean(1))


@net((2, 6), others=WORDS, gates={"table": 8, "table_linear": "writes a model output"})
class table_is_output(nn.Module):
    """The last layer's weight is the table's: a language model. In the slim net each has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.types = nn.Embedding(11, 8), nn.Parameter(torch.ones(3, 8))
        self.register_buffer("kind", torch.ones(1, 1, dtype=torch.long))
        self.a, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(words(x)) + F.embedding(self.kind, self.types)
        return F.linear(self.norm(y + F.gelu(self.a(y))), self.table.weight)


@net((2, 6), others=WORDS, gates={"table": 8, "gate": SCALES})
class table_read_twice(nn.Module):
    """One table for two sentences, called as a function; another one scales channels."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.ones(11, 8)), nn.Embedding(7, 8)
        self.a, self.b, self.gate = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(3, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = F.embedding(words(x), self.table), F.embedding(words(x.flip(1)), self.table, padding_idx=-1)
        y = self.a(one * self.scale(words(x, 7))) + self.b(F.relu(other))
        return self.head(y * torch.sigmoid(self.gate(x[:, :3]))[:, None])


class _Turned(nn.Module):
    """GPT-2's linear layer: columns first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(inputs, outputs)), nn.Parameter(torch.ones(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.size()[:-1], self.bias.shape[0])


@net((2, 6), others=WORDS, gates={
    "attend": "heads 2, values 4, others 16", "out": 8, "wide": 12, "back": 8, "last": "writes a model output",
})  # fmt: skip
class turned_layers(nn.Module):
    """Words, a block of layers written as added products, and scores that are added to a table in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.attend, self.out = _Turned(8, 24), _Turned(8, 8)
        self.wide, self.back, self.last = _Turned(8, 12), _Turned(12, 8), _Turned(8, 4)
        self.far = nn.Parameter(torch.ones(1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(words(x))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.attend(self.norm(x)).chunk(3, -1))
        scores = torch.baddbmm(self.far, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0.5, alpha=0.25)
        y = scores.unflatten(0, (-1, 2)).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return self.last((x + self.back(F.gelu(self.wide(x)))).mean(1))
