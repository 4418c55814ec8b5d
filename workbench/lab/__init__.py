"""What notebooks show: pure functions from traces and block pools to tables, and the course and glossary as data."""

from workbench.lab.course import course_map, glossary
from workbench.lab.figures import block_tables, holders, pool_map, step_table, timeline
from workbench.lab.table import Cell, Table

__all__ = ["Cell", "Table", "block_tables", "course_map", "glossary", "holders", "pool_map", "step_table", "timeline"]
