"""Everything that only a GPU can tell, in one run of minutes: ``workbench bench gpu``.

A GPU may be lent for a quarter of an hour and bare: no network, nothing to install, no model. So every section is a
process of its own with its own limit in time, what it found is on disk as soon as it is found, and the failure of one
costs nothing of the others. Weights are random. `sections` names them in their order, `drive` runs them, `child` is
what runs in a section's process, `summary` makes of the rows what is kept.

    sections ─ drive ─┬─ child: device, ceilings          what is this, how fast does it copy and multiply
                      ├─ child: compile                   all kernels, as many at a time as there are processors
                      ├─ child: correctness               tests marked gpu_quick
                      ├─ child: attention, paged, fused … `cases` timed by `clock`
                      ├─ child: engine                    tokens per second, with and without CUDA graphs
                      └─ child: notebooks                 those that measure kernels
"""
