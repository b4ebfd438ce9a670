"""What to ask: the schema of a manifest, and the mixes that ship with Draftmill."""
