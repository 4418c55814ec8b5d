"""Pictures of what the engine did, as SVG text: pure functions of traces and pool snapshots.

All frames of one run have one size and one legend. Text takes the page's own colour, fills are translucent, and every
colour comes with a letter or a shape.
"""

from workbench.lab.svg.bits import bits_table, render_bits
from workbench.lab.svg.blocks import block_table_frames, render_block_table
from workbench.lab.svg.heads import prompt_heads_table, render_prompt_heads
from workbench.lab.svg.lifeline import render_lifeline
from workbench.lab.svg.memory import memory_map_frames, render_memory_map
from workbench.lab.svg.parting import parting_table, render_parting
from workbench.lab.svg.pipeline import render_pipeline
from workbench.lab.svg.seats import render_seats
from workbench.lab.svg.tiles import render_tiles, tile_frames, tile_table
from workbench.lab.svg.timeline import render_step_timeline, timeline_frames
from workbench.lab.svg.tree import prefix_tree_frames, prefix_tree_table, render_prefix_tree

__all__ = [
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
]
