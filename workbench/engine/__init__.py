"""The engine: requests, the scheduler that decides each step, and the record of what happened. No torch."""
