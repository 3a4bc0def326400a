"""What is known of finished turns: metrics at once, Postgres in batches, collectors, the latency page."""
