"""What notebooks use: the lesson, and pure functions from traces and block pools to tables.

Names are imported on first use, so that nothing is loaded that a notebook does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "workbench.lab.attention_share": ("attention_share",),
    "workbench.lab.block_fill": ("pool_use",),
    "workbench.lab.checkpoint_bytes": ("model_block", "stored", "stored_table"),
    "workbench.lab.compiled_kernels": ("agreed_figures", "made_table"),
    "workbench.lab.controls": ("control", "explore", "run_button"),
    "workbench.lab.course": ("course_map", "glossary"),
    "workbench.lab.demands": ("compare_rules", "serve", "tables_by_step", "waste_bars"),
    "workbench.lab.families": ("family", "family_config"),
    "workbench.lab.figures": ("block_tables", "holders", "pool_map", "step_table", "timeline"),
    "workbench.lab.fused_pairs": ("fusions", "layer_bytes"),
    "workbench.lab.lesson": ("Lesson", "current_lesson", "start"),
    "workbench.lab.layer_numbers": ("changed_inputs", "layer_inputs", "layer_weight", "moved_by"),
    "workbench.lab.memory_plot": ("memory_map",),
    "workbench.lab.number_views": ("format_table", "keep", "kept_table"),
    "workbench.lab.own_kernel": ("beside", "compile_own"),
    "workbench.lab.path": ("engine_path",),
    "workbench.lab.player": ("Player",),
    "workbench.lab.playground": ("PrefixPlayground",),
    "workbench.lab.plots": ("line_plot", "stacked_bars", "tick_plot"),
    "workbench.lab.prefix_runs": ("run_prompts",),
    "workbench.lab.prompt_heads": ("common_heads", "hit_tokens", "read_prompts"),
    "workbench.lab.prompt_lint": ("lint_prompts", "prompt_linter", "suggest_order"),
    "workbench.lab.quantized_layers": ("first_layers", "judged", "layer_errors", "mean_error"),
    "workbench.lab.quantized_tables": ("awq_table", "error_table", "group_lines", "group_table"),
    "workbench.lab.quantized_models": ("whole_models",),
    "workbench.lab.seats": ("kv_bytes_on_each", "most_at_once", "seats_of", "seats_on"),
    "workbench.lab.shown": ("drive", "show"),
    "workbench.lab.small_models": ("scratch_folder", "small_config", "small_llm"),
    "workbench.lab.snapshot": ("PoolSnapshot", "Watch"),
    "workbench.lab.steps": (
        "decode_in_turn",
        "decode_steps",
        "kernels_in_a_decode_step",
        "operations_in_a_decode_step",
        "prefill_step",
    ),
    "workbench.lab.svg": (
        "bits_table",
        "block_table_frames",
        "memory_map_frames",
        "parting_table",
        "prefix_tree_frames",
        "prefix_tree_table",
        "prompt_heads_table",
        "render_bits",
        "render_block_table",
        "render_lifeline",
        "render_memory_map",
        "render_parting",
        "render_pipeline",
        "render_prefix_tree",
        "render_prompt_heads",
        "render_seats",
        "render_step_timeline",
        "render_tiles",
        "tile_frames",
        "tile_table",
        "timeline_frames",
    ),
    "workbench.lab.table": ("Cell", "Table"),
    "workbench.lab.tiny_model": ("judge", "train"),
    "workbench.lab.token_text": ("texts_of", "token_texts"),
    "workbench.lab.tree_snapshot": ("TreeSnapshot", "leaving_line"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept under the package's own name: a module that is called like what it exports would otherwise hide it.
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
