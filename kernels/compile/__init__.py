"""What the compiler makes of the Triton kernels, found out where no GPU is; `kernels.inspect` is the command.

find: which configurations are launched. build: compile one of them. sass: read the machine code. made: the figures.
chips: the limits of the chips and occupancy. cache and farm: nothing is compiled twice, and several at a time.
table and rules: what was agreed for each Triton version, and what counts as a fault. show: the figures as text.
"""
