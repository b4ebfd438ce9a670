"""Prompts to completions: a target model answers a planned mix, exactly once, into JSONL shards."""
