"""Simulating: the real engine, scheduler and pool on a virtual clock, with a cost model in the model's place. No torch.

Every time that comes out is a model's, not a measurement; show it as such.
"""

from workbench.simulate.chip_cost import ChipCost
from workbench.simulate.chips import CHIPS, Chip, Efficiency, chip_named
from workbench.simulate.cost import CostModel, FixedCost, Memory, Price
from workbench.simulate.goodput import Goodput, highest_rate
from workbench.simulate.models import model_shape
from workbench.simulate.run import PlanDigest, simulate, simulated_steps
from workbench.simulate.runner import CostModelRunner, simulated_engine
from workbench.simulate.what_if import Parting, what_if

__all__ = [
    "CHIPS", "Chip", "ChipCost", "CostModel", "CostModelRunner", "Efficiency", "FixedCost", "Goodput", "Memory",
    "Parting", "PlanDigest", "Price", "chip_named", "highest_rate", "model_shape", "simulate", "simulated_engine",
    "simulated_steps", "what_if",
]  # fmt: skip
