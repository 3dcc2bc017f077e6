"""Policy losses: one algorithm a file, with its paper, formula and assumption; pure functions of tensors."""
