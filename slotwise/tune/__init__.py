"""Find the batch size, delay, workers and threads that serve best under a latency target, by measurement.

space      the settings to choose from              simulate   a simulated server: which settings to try first
goal       the target, and which result is better
search     one trial after the other                finals     the best again, in turn; is the lead real?
live_bench trials on a running server               cleanup    takes the trial models away when the tuner cannot
page       the report
"""
