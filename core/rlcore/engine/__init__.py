"""The loop: collect, prepare, update, sync; and evaluation."""
