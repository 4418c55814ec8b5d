"""Scripts that serve one system each, run by path with that system's own Python. Only ``ours.py`` imports workbench.

They find each other beside themselves (`protocol`, `transformers_serving`, `llama_schedule`), so they need no install.
"""
