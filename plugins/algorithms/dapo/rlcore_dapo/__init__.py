"""Decoupled clip and dynamic sampling policy optimization."""
