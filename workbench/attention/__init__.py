"""Attention behind one interface, and the choice of who computes it."""
