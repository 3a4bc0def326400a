"""How well retrieval finds what it should: judged questions, measures, and the run that puts the two together."""
