"""The paper's experiments: run in cells that are never run twice, put beside its own numbers, and judged."""
