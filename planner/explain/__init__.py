"""Plans in words: what runs where (`lines`), what binds (`binding`), what would lift it and why a region is unused
(`counterfactuals`)."""
