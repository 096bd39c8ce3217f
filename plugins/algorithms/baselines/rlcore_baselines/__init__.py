"""Advantage estimators that differ in the baseline they compare a sample with."""
