"""Latencies over time: histograms that merge, rolled up by minute, hour and day."""
