"""Policy losses, one module each. Importing them needs no torch; what builds a loss does."""
