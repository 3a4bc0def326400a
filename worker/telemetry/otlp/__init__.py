"""Traces and metrics for OpenTelemetry collectors, named by the conventions for generative AI."""
