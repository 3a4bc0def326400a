"""Traces for collectors of OpenTelemetry: the same spans, named by the conventions for generative AI."""
