"""Every test process, and each that it starts, computes with one thread and asks no network for models."""

import os
import signal

# Before torch is imported: it reads them once. Two threads on two busy cores can be ten times slower than one.
for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}.items():
    os.environ.setdefault(name, value)

# A shell that starts the tests in the background has Ctrl-C ignored, which every process they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
