"""The modules that were exported: make.py says how. Their lines stand in the models, and tests name these lines."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(h)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.softmax(self.head(x), dim=-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.query(x)
        q, x = q.unsqueeze(1), x.unsqueeze(1)
        seen = nn.functional.scaled_dot_product_attention(q, x, x, attn_mask=mask)
        return torch.relu(seen) + x


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        x = torch.ops.mine.swish(x)
        return torch.cos(x) * 2
