"""Training set to drafter: the DFlash trainer, and everything one asks of a drafter."""
