"""Measuring: workloads, serving metrics, peers, and where a number comes from."""
