"""What follows attention in a layer: one MLP, or a mixture of experts."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch.nn.functional import pad

import kernels
from workbench.model.architecture import Experts
from workbench.model.layer_weights import LayerWeights
from workbench.model.linear import Linear
from workbench.model.weights.expected import SHARED


class MLP:
    """SwiGLU: ``down(silu(gate(x)) · up(x))``."""

    def __init__(self, weights: LayerWeights) -> None:
        self.gate_up = weights.linear("gate_proj", "up_proj")
        self.down = weights.linear("down_proj")

    @property
    def num_bytes(self) -> int:
        return self.gate_up.num_bytes + self.down.num_bytes

    def __call__(self, x: torch.Tensor, maker: str) -> torch.Tensor:
        """x ``[num_tokens, hidden_size]``; returns the shape of x. ``maker``: of the operations between products."""
        return self.down(kernels.silu_mul(self.gate_up(x), maker=maker))


class Mixture:
    """A router, its experts, and perhaps one expert that every token passes through.

    Tokens are sorted by expert, and each expert that has any computes them in one go. How many it has is looked at, so
    a step with a mixture cannot be recorded, and on a GPU each layer waits for that number.
    """

    def __init__(self, weights: LayerWeights, shape: Experts) -> None:
        self.router = Linear([weights.floats("gate.weight").float()])
        self.correction = weights.floats("gate.e_score_correction_bias").float() if shape.routing.corrected else None
        self.experts = [MLP(weights.within(f"experts.{expert}.")) for expert in range(shape.num_experts)]
        self.shared = MLP(weights.within(f"{SHARED[shape.shared_gate]}.")) if shape.shared_intermediate_size else None
        self.shared_gate = weights.linear("shared_expert_gate") if shape.shared_gate else None
        routing = asdict(shape.routing)
        del routing["method"], routing["corrected"]  # what they mean stands in the numbers of groups and the correction
        self._routing = {"experts_per_token": shape.experts_per_token, **routing}

    @property
    def expert_bytes(self) -> int:
        """Of the experts that a token may pass by."""
        return sum(expert.num_bytes for expert in self.experts)

    @property
    def num_bytes(self) -> int:
        correction = 0 if self.correction is None else self.correction.nbytes
        shared = sum(part.num_bytes for part in (self.shared, self.shared_gate) if part is not None)
        return self.router.num_bytes + correction + shared + self.expert_bytes

    def __call__(self, x: torch.Tensor, maker: str) -> torch.Tensor:
        """As of `MLP`."""
        chosen, shares = kernels.route(self.router(x.float()), self.correction, **self._routing)
        by_expert = chosen.flatten().argsort(stable=True)
        rows, shares = by_expert // chosen.shape[1], shares.flatten()[by_expert].to(x.dtype)
        out = torch.zeros_like(x)
        begin = 0
        for expert, count in enumerate(chosen.flatten().bincount(minlength=len(self.experts)).tolist()):
            if count:
                own = slice(begin, begin + count)
                out.index_add_(0, rows[own], self.experts[expert](x[rows[own]], maker) * shares[own, None])
                begin += count
        if self.shared is not None:
            shared = self.shared(x, maker)
            out += shared if self.shared_gate is None else shared * open_part(self.shared_gate(x))
        return out


def open_part(gate: torch.Tensor) -> torch.Tensor:
    """The sigmoid of ``gate`` ``[num_tokens, 1]``, as a softmax over it and 0.

    torch computes a sigmoid in vectors and what is left at the end one by one, with other last bits: which a token
    gets would depend on how many are beside it (`workbench.model.batch_invariant`). A softmax goes row by row.
    """
    return pad(gate, (0, 1)).softmax(-1)[:, :1]
