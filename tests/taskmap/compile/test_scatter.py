"""Whole models with writes at data-dependent positions: no write runs through PyTorch, on any target."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taskmap.errors import IndexOutOfRangeError
from taskmap.util.metrics import metrics
from tests.taskmap.compare import check, compiled, since


class Language(nn.Module):
    """A small GPT-2: embeddings of tokens and positions, one block, the head tied to the tokens' embedding."""

    def __init__(self, words: int = 67, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        b, t = tokens.shape
        x = self.wte(tokens) + self.wpe(torch.arange(t))
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        x = x + self.out(y)
        x = x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))
        return F.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


@pytest.mark.parametrize("target", ["cpu", "cuda-sim"])
def test_training_a_language_model_needs_no_extern(target: str) -> None:
    torch.manual_seed(0)
    model = Language()
    mine = copy.deepcopy(model)
    tokens, wanted = torch.randint(0, 67, (2, 2, 16))
    model(tokens, wanted).backward()
    before = metrics()
    compiled(mine, options={"target": target})(tokens, wanted).backward()
    assert (since(before).externs, since(before).fallbacks) == (0, 0)
    for a, b in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_tensors_are_changed_in_place_as_by_eager() -> None:
    x, i, s = torch.zeros(6, 20), torch.tensor([1, 4, 1]), torch.randn(3, 20)

    def change(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        x.index_add_(0, i, s)
        x[i] = x[i] * 2
        x[:, i] += 1
        return x.scatter_reduce_(0, i[:, None].expand(3, 20), s, "amax")

    check(change, x, i, s)


def test_sizes_are_symbolic() -> None:
    function = compiled(lambda x, i, s: (x.index_add(0, i, s), x.index_put((i,), s)), dynamic=True)
    before = metrics()
    for n in (3, 9, 40):
        x, i, s = torch.randn(n, 5), torch.randperm(n)[: n - 1], torch.randn(n - 1, 5)
        for got, want in zip(function(x, i, s), (x.index_add(0, i, s), x.index_put((i,), s)), strict=True):
            torch.testing.assert_close(got, want)
    assert since(before).graphs == 1
    assert since(before).externs == 0


@pytest.mark.parametrize("target", ["cpu", "cuda-sim"])
def test_a_position_out_of_range_is_an_error(target: str) -> None:
    function = compiled(lambda x, i, s: x.index_add(0, i, s), options={"target": target})
    x, s = torch.zeros(5, 4), torch.ones(2, 4)
    torch.testing.assert_close(function(x, torch.tensor([4, 4]), s)[4], torch.full((4,), 2.0))
    for position in (5, -1):
        with pytest.raises(IndexOutOfRangeError, match="index_add"):
            function(x, torch.tensor([0, position]), s)
