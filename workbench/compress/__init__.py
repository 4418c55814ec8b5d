"""A whole model in fewer bits: runs it layer by layer to gather what the algorithms of `workbench.quant` need."""
