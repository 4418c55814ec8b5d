"""Simulating: the real engine, scheduler and pool on a virtual clock, with a cost model in the model's place. No torch.

Every time that comes out is a model's, not a measurement; show it as such.
"""

from workbench.simulate.cost import CostModel, FixedCost, Memory, Price
from workbench.simulate.runner import CostModelRunner, simulated_engine

__all__ = ["CostModel", "CostModelRunner", "FixedCost", "Memory", "Price", "simulated_engine"]
