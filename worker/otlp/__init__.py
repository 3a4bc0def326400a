"""Traces and metrics for collectors of OpenTelemetry, named by the conventions for generative AI."""
