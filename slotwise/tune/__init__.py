"""Find the batch size, delay, workers and threads that serve best under a latency target, by measurement.

space      what may be chosen                       simulate   a server made of arithmetic: which settings to try first
search     trials with Optuna, pruned early         finals     the best again, interleaved; is the lead real?
live_bench trials on a running server               cleanup    takes the trial models away when the tuner cannot
study      the classic batching study               page       the report
"""
