"""Completions to a training set: profile the mix, remove what repeats, balance, tokenise, write Arrow shards."""
