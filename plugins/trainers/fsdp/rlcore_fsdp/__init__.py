"""The FSDP2 train backend."""
